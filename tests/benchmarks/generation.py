"""How fast the target answers in a generation pass, beside plain `LLM.generate` on the same prompts, and
beside `speculators regenerate-responses` on the same rows; and what becomes of the rows.

    python tests/benchmarks/generation.py --target DIR [--prompts 512] [--max-tokens 128] [--theirs]

All get the same engine arguments and stop tokens, a fresh engine each time, and are measured in turn, in
alternating order. A rate is generated tokens a second:

  ours    tokens_extracted / extraction_s of the ledger: every answer generated, checked and in the store
  plain   one `LLM.generate` in process: token ids in, token ids out, no detokenizing, nothing written
  theirs  what regenerate-responses says of itself, with `vllm serve` and as many requests at once as rows

CPU seconds are those of all processes while they generate (of theirs, the server's), and tell more than the
rates on a machine that is busy with other things. Tokens differ where two are almost equally likely.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
ENVIRONMENT = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
CONVERSATIONS = ROOT / "config/demo/conversations.jsonl"
PLAIN = """
import json, os, sys, time
import psutil
import pyarrow.parquet as pq
from vllm import LLM, SamplingParams

arguments = json.loads(sys.argv[1])
table = pq.read_table(arguments["prompts"], columns=["input_ids"])
prompts = [{"prompt_token_ids": ids} for ids in table["input_ids"].to_pylist()]
llm = LLM(**arguments["llm"])
parameters = SamplingParams(
    max_tokens=arguments["max_tokens"], temperature=0.0, detokenize=False, stop_token_ids=arguments["stops"]
)
def cpu_s():
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)
started, before = time.monotonic(), cpu_s()
outputs = llm.generate(prompts, parameters, use_tqdm=False)
figure = {"seconds": time.monotonic() - started, "cpu_s": cpu_s() - before}
figure["tokens"] = sum(len(output.outputs[0].token_ids) for output in outputs)
json.dump(figure, open(arguments["figure"], "w"))
"""


LONG, UNASKED = "Why? " * 2000, [{"role": "assistant", "content": "Hello."}]
"""A question that leaves no room for an answer, and a conversation without one."""
WINDOW = 1024


@dataclass(frozen=True)
class Figure:
    tokens: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def cpu_s(pid: int) -> float:
    """Of a process and all below it."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


class Bench:
    def __init__(self, work: Path, arguments: argparse.Namespace) -> None:
        self.work, self.arguments = work, arguments
        self.results = work / "results/bench"
        self.config = work / "config.json"
        self.engine = {"enforce_eager": arguments.eager, "gpu_memory_utilization": 0.5}
        values = {
            "target": {"path": str(arguments.target.resolve())},
            "data": {"sources": [{"path": "talks.jsonl"}]},
            "tokenization": {"max_length": WINDOW},
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
        """Questions, and three rows of which nothing can come: too long, without a question, met before."""
        rows = [json.loads(line) for line in CONVERSATIONS.read_text().splitlines()]
        texts = [turn["content"] for row in rows for turn in row["messages"] if turn["role"] == "user"]
        questions = [f"({n}) {texts[n % len(texts)][:600]}" for n in range(number)]
        talks = [[{"role": "user", "content": one}] for one in (*questions, LONG, questions[0])]
        return [json.dumps({"messages": talk}) + "\n" for talk in (*talks, UNASKED)]

    def script(self, name: str, *arguments: Any) -> None:
        command = [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)]
        with open(self.work / f"{name}.log", "w") as log:
            subprocess.run(command, cwd=self.work, stderr=log, check=True)

    def ours(self, number: int) -> Figure:
        shutil.rmtree(self.work / "results/generations", ignore_errors=True)
        ledger = self.results / f"generation/passes/{number:03d}/0.json"
        command = [
            *(sys.executable, str(SCRIPTS / "generate_pass.py"), "--config", str(self.config)),
            *("--results", str(self.results), "--pass-number", f"{number:03d}", "--stripe", "0"),
            *("--engine-log", str(self.work / "engine.log"), "--ledger", str(ledger)),
        ]
        log = self.work / "generate_pass.log"
        with open(log, "w") as output:
            process = subprocess.Popen(command, cwd=self.work, stderr=output)
        asked = self.index()["samples"]
        used = []
        for said in ("model loaded in", f"generation: {asked}/{asked} samples"):
            while said not in log.read_text() and process.poll() is None:
                time.sleep(0.02)
            used.append(cpu_s(process.pid))
        assert process.wait() == 0, log.read_text()
        facts = json.loads(ledger.read_text())
        assert not facts["failure"], facts["failure"]
        return Figure(facts["tokens_extracted"], facts["extraction_s"], used[1] - used[0])

    def plain(self, number: int) -> Figure:
        arguments = {
            "prompts": str(self.results / "prompts/prompts.parquet"),
            "stops": self.index()["tokenizer"]["stop_ids"],
            "max_tokens": self.arguments.max_tokens,
            "figure": str(self.work / "plain.json"),
            "llm": {
                "model": str(self.arguments.target.resolve()),
                "dtype": self.arguments.dtype,
                "max_model_len": WINDOW,
                "skip_tokenizer_init": True,
                **self.engine,
            },
        }
        with open(self.work / "plain.log", "w") as log:
            command = [sys.executable, "-c", PLAIN, json.dumps(arguments)]
            subprocess.run(command, stdout=log, stderr=log, env=ENVIRONMENT, check=True)
        return Figure(**json.loads((self.work / "plain.json").read_text()))

    def theirs(self, number: int) -> Figure:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{free.getsockname()[1]}"
        # the module of `vllm serve`, which itself wants a distribution of that name, unlike the CPU's
        served = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        served += ["--model", str(self.arguments.target.resolve())]
        served += ["--dtype", self.arguments.dtype, "--max-model-len", str(WINDOW)]
        served += ["--gpu-memory-utilization", "0.5", *(["--enforce-eager"] if self.arguments.eager else [])]
        served += ["--port", address.rpartition(":")[2]]
        with open(self.work / "server.log", "w") as log:
            server = subprocess.Popen(served, stdout=log, stderr=log, env=ENVIRONMENT, start_new_session=True)
        try:
            while not is_up(f"{address}/health"):
                assert server.poll() is None, (self.work / "server.log").read_text()
                time.sleep(0.5)
            return self.regenerate(address, number, server.pid)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def regenerate(self, address: str, number: int, server: int) -> Figure:
        output = self.work / f"theirs-{number}.jsonl"
        command = [sys.executable, "-m", "speculators", "regenerate-responses", "--dataset", "talks.jsonl"]
        command += ["--endpoint", f"{address}/v1/chat/completions", "--outfile", str(output)]
        command += [
            "--concurrency",
            str(self.arguments.prompts),
            "--max-tokens",
            str(self.arguments.max_tokens),
        ]
        command += ["--sampling-params", '{"temperature": 0}']
        before = cpu_s(server)
        done = subprocess.run(command, cwd=self.work, capture_output=True, text=True, check=True)
        used = cpu_s(server) - before
        seconds = re.search(r"complete in ([\d.]+)s: (.*)", done.stdout)
        assert seconds, done.stdout
        tokens = sum(sum(json.loads(line)["loss_mask"]) for line in output.open())
        failed = len(output.with_suffix(".errors.jsonl").read_text().splitlines())
        rows, samples = (
            len((self.work / "talks.jsonl").read_text().splitlines()),
            len(output.read_text().splitlines()),
        )
        lost = rows - samples - failed
        print(f"theirs: of {rows} rows {samples} samples, {failed} errors, {lost} not mentioned", flush=True)
        return Figure(tokens, float(seconds[1]), used)

    def index(self) -> dict[str, Any]:
        return json.loads((self.results / "prompts/batches.json").read_text())

    def rows(self) -> str:
        """What became of ours."""
        index = self.index()
        return f"ours: of {index['rows']} rows {index['samples']} asked, dropped {index['dropped']}"


def is_up(address: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(address):
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", type=Path, required=True, help="directory of a checkpoint")
    parser.add_argument("--prompts", type=int, default=512)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--eager", action="store_true", help="for tiny models, whose compilation costs more")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--theirs", action="store_true", help="regenerate-responses, too")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory), arguments)
        print(bench.rows(), flush=True)
        ways = {
            "ours": bench.ours,
            "plain": bench.plain,
            **({"theirs": bench.theirs} if arguments.theirs else {}),
        }
        turns: list[dict[str, Figure]] = []
        for number in range(1, arguments.repeat + 1):
            turns.append({})
            for name in list(ways)[:: 1 if number % 2 else -1]:
                figure = turns[-1][name] = ways[name](number)
                print(
                    f"{name}: {figure.tokens:,} tokens in {figure.seconds:.1f} s, {figure.rate:,.0f}/s,"
                    f" {figure.cpu_s:.1f} CPU s",
                    flush=True,
                )
    for other in list(ways)[1:]:
        rates = [turn["ours"].rate / turn[other].rate for turn in turns]
        used = [turn[other].cpu_s / turn["ours"].cpu_s for turn in turns]
        print(f"ours / {other}: {told(rates)}; by CPU seconds: {told(used)}")


def told(ratios: list[float]) -> str:
    return f"{statistics.median(ratios):.3f} ({', '.join(f'{one:.3f}' for one in ratios)})"


if __name__ == "__main__":
    main()
