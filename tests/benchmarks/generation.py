"""How fast the target answers in a generation pass, beside plain `LLM.generate` on the same prompts.

    python tests/benchmarks/generation.py --target DIR [--prompts 128] [--max-tokens 128] [--repeat 2]

Both get the same engine arguments and stop tokens, a fresh engine each time, and are measured in turn, in
alternating order. A rate is generated tokens a second:

  ours   tokens_extracted / extraction_s of the ledger: every answer generated, checked and in the store
  plain  one `LLM.generate` in process: token ids in, token ids out, no detokenizing, nothing written

Behind each rate stand the tokens, which differ where two tokens are almost equally likely.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
CONVERSATIONS = ROOT / "config/demo/conversations.jsonl"
PLAIN = """
import json, sys, time
import pyarrow.parquet as pq
from vllm import LLM, SamplingParams

arguments = json.loads(sys.argv[1])
table = pq.read_table(arguments["prompts"], columns=["input_ids"])
prompts = [{"prompt_token_ids": ids} for ids in table["input_ids"].to_pylist()]
llm = LLM(**arguments["llm"])
parameters = SamplingParams(
    max_tokens=arguments["max_tokens"], temperature=0.0, detokenize=False, stop_token_ids=arguments["stops"]
)
started = time.monotonic()
outputs = llm.generate(prompts, parameters, use_tqdm=False)
seconds = time.monotonic() - started
tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
json.dump({"tokens": tokens, "seconds": seconds}, open(arguments["figure"], "w"))
"""


class Bench:
    def __init__(self, work: Path, arguments: argparse.Namespace) -> None:
        self.work, self.arguments = work, arguments
        self.results = work / "results/bench"
        self.config = work / "config.json"
        self.engine = {"enforce_eager": arguments.eager, "gpu_memory_utilization": 0.5}
        values = {
            "target": {"path": str(arguments.target.resolve())},
            "data": {"sources": [{"path": "talks.jsonl"}]},
            "tokenization": {"max_length": 1024},
            "extraction": {"dtype": arguments.dtype, "engine_arguments": self.engine},
            "generation": {"responses": "target", "max_tokens": arguments.max_tokens},
        }
        self.config.write_text(json.dumps(values))
        (work / "talks.jsonl").write_text("".join(self.talks(arguments.prompts)))
        target = self.results / "target.json"
        self.script("describe_target", "--target", values["target"]["path"], "--output", target)
        self.script(
            "plan_prompts",
            *("--config", self.config, "--target", target, "--output-dir", self.results / "prompts"),
        )

    @staticmethod
    def talks(number: int) -> list[str]:
        rows = [json.loads(line) for line in CONVERSATIONS.read_text().splitlines()]
        texts = [turn["content"] for row in rows for turn in row["messages"] if turn["role"] == "user"]
        questions = [f"({n}) {texts[n % len(texts)][:600]}" for n in range(number)]
        return [json.dumps({"messages": [{"role": "user", "content": one}]}) + "\n" for one in questions]

    def script(self, name: str, *arguments: Any) -> None:
        command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)]
        with open(self.work / f"{name}.log", "w") as log:
            subprocess.run(command, cwd=self.work, stderr=log, check=True)

    def ours(self, number: int) -> tuple[int, float]:
        shutil.rmtree(self.work / "results/generations", ignore_errors=True)
        ledger = self.results / f"generation/passes/{number:03d}/0.json"
        self.script(
            "generate_pass",
            *("--config", self.config, "--results", self.results, "--pass-number", f"{number:03d}"),
            *("--stripe", "0", "--engine-log", self.work / "engine.log", "--ledger", ledger),
        )
        facts = json.loads(ledger.read_text())
        assert not facts["failure"], facts["failure"]
        return facts["tokens_extracted"], facts["extraction_s"]

    def plain(self) -> tuple[int, float]:
        index = json.loads((self.results / "prompts/batches.json").read_text())
        arguments = {
            "prompts": str(self.results / "prompts/prompts.parquet"),
            "stops": index["tokenizer"]["stop_ids"],
            "max_tokens": self.arguments.max_tokens,
            "figure": str(self.work / "plain.json"),
            "llm": {
                "model": str(self.arguments.target.resolve()),
                "dtype": self.arguments.dtype,
                "max_model_len": 1024,
                "skip_tokenizer_init": True,
                **self.engine,
            },
        }
        with open(self.work / "plain.log", "w") as log:
            command = [sys.executable, "-c", PLAIN, json.dumps(arguments)]
            environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
            subprocess.run(command, stdout=log, stderr=log, env=environment, check=True)
        figure = json.loads((self.work / "plain.json").read_text())
        return figure["tokens"], figure["seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="directory of a checkpoint")
    parser.add_argument("--prompts", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--eager", action="store_true", help="for tiny models, whose compilation costs more")
    parser.add_argument("--repeat", type=int, default=2)
    arguments = parser.parse_args()
    ratios = []
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), arguments)
        for number in range(1, arguments.repeat + 1):
            measured = {}
            for name in ("ours", "plain") if number % 2 else ("plain", "ours"):
                tokens, seconds = bench.ours(number) if name == "ours" else bench.plain()
                measured[name] = tokens / seconds
                print(f"{name}: {tokens:,} tokens in {seconds:.1f} s, {tokens / seconds:,.0f}/s", flush=True)
            ratios.append(measured["ours"] / measured["plain"])
    print(f"ours / plain: {statistics.median(ratios):.3f} ({', '.join(f'{one:.3f}' for one in ratios)})")


if __name__ == "__main__":
    main()
