#!/usr/bin/env python3
"""Close the loop on a CUDA machine: the target's own answers, extraction, the training set in all formats,
`speculators train --config train.yaml`, and the draft in vLLM with its acceptance length.

    python tests/gpu/train_on_gpu.py [--work DIR] [--epochs 6] [--prompts SHAREGPT.json]

About five minutes on one GPU with tiny-llama. Needs no network; exits non-zero where the loss does not fall
or the draft is not better than none. --cpu-plumbing goes as far as the assembled set with the transformers
engine, to test this script without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from prove_on_gpu import CONVERSATIONS, ROOT, Prover

TARGET = "tiny-llama"
HELD_OUT = 10
"""One in so many prompts is not trained on, but measured with."""
ANSWER_TOKENS = 96
GENERATE = f"""
import json, sys
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams

target, prompts, output = sys.argv[1:4]
tokenizer = AutoTokenizer.from_pretrained(target)
turns = [[{{"role": "user", "content": prompt}}] for prompt in json.load(open(prompts))]
texts = [
    tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True) for turn in turns
]
ids = [tokenizer(text, add_special_tokens=False)["input_ids"][:400] for text in texts]
llm = LLM(model=target, enforce_eager=True, gpu_memory_utilization=0.3, max_model_len=1024)
answers = llm.generate(
    [{{"prompt_token_ids": one}} for one in ids], SamplingParams(max_tokens={ANSWER_TOKENS}, temperature=0)
)
with open(output, "w") as rows:
    for number, (one, answer) in enumerate(zip(ids, answers)):
        tokens = list(answer.outputs[0].token_ids)
        if number % {HELD_OUT} and len(tokens) > 1:
            row = {{"input_ids": one + tokens, "loss_mask": [0] * len(one) + [1] * len(tokens)}}
            rows.write(json.dumps(row) + "\\n")
json.dump(ids[::{HELD_OUT}], open("held_out.json", "w"))
"""
ACCEPT = """
import json, sys
from vllm import LLM, SamplingParams

target, draft = sys.argv[1:3]
llm = LLM(
    model=target, enforce_eager=True, gpu_memory_utilization=0.3, max_model_len=1024, disable_log_stats=False,
    speculative_config={"method": "eagle3", "model": draft, "num_speculative_tokens": 3},
)
prompts = [{"prompt_token_ids": ids} for ids in json.load(open("held_out.json"))]
llm.generate(prompts, SamplingParams(max_tokens=96, temperature=0))
counts = {m.name: getattr(m, "value", getattr(m, "values", None)) for m in llm.get_metrics()}
drafts = counts["vllm:spec_decode_num_drafts"]
accepted = counts["vllm:spec_decode_num_accepted_tokens"]
result = {
    "prompts": len(prompts), "drafts": drafts, "accepted": accepted,
    "per_position": counts.get("vllm:spec_decode_num_accepted_tokens_per_pos"),
    "acceptance_length": 1 + accepted / max(drafts, 1),
}
json.dump(result, open("acceptance.json", "w"))
"""


class Loop(Prover):
    """One target's way to a draft; each step says how long it took."""

    def __init__(self, work: Path, engine: str | None) -> None:
        super().__init__(work, TARGET, 1)
        config: dict[str, Any] = json.loads(self.config.read_text())
        config["data"] = {"sources": [{"path": "own.jsonl", "layout": "tokens"}], "train_ratio": 0.9}
        config["tokenization"] = {"max_length": 1024, "batch_tokens": 50_000}
        config["compatibility"] = {"canary": "off"}  # prove_on_gpu.py is for that
        config["training_set"] = {
            "formats": ["speculators", "specforge", "modelopt"],
            "draft_vocab_size": 1024,
        }
        if engine:
            config["extraction"] = {"engine": engine}
        self.config.write_text(json.dumps(config))
        self.training_set = self.results / "training_set"
        self.draft = self.results / "draft"

    def step(self, name: str, command: list[str]) -> str:
        """Run a command in the scratch directory; returns what it printed."""
        started = time.monotonic()
        log = self.logs / f"{name}.log"
        environment = {**os.environ, "COLUMNS": "200", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
        with open(log, "w") as output:
            code = subprocess.run(
                command,
                cwd=self.work,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                check=False,
            ).returncode
        text = log.read_text(errors="replace")
        print(f"{name}: exit code {code}, {time.monotonic() - started:.0f} s", flush=True)
        if code != 0:
            sys.exit(f"{name} failed:\n{text[-8000:]}")
        return text

    def python(self, name: str, source: str, *arguments: str | Path) -> str:
        return self.step(name, [sys.executable, "-c", source, *map(str, arguments)])

    def build_target(self) -> Path:
        target = self.work.parent / TARGET
        if not target.exists():
            self.script(
                "build_demo_target",
                *("--target", TARGET, "--conversations", CONVERSATIONS, "--output", target),
            )
        return target

    def assemble(self) -> None:
        """After the reference: stored states beside transformers' own."""
        reference = self.results / "reference.json"
        seconds = self.script(
            "prove_target", *("--config", self.config, "--results", self.results, "--output", reference)
        )
        status = json.loads(reference.read_text())["status"]
        print(f"reference: {status}, {seconds:.0f} s", flush=True)
        seconds = self.script(
            "assemble_training_set",
            *("--config", self.config, "--results", self.results, "--output", self.training_set),
            *("--processes", "4"),
        )
        facts = json.loads((self.training_set / "provenance.json").read_text())
        print(f"assembled: {facts['rows']} rows, {facts['tokens']} tokens, {seconds:.0f} s", flush=True)
        for name, use in facts["formats"].items():
            print(f"  {name}: {use['command']}", flush=True)

    def train(self, epochs: int) -> tuple[Path, list[float]]:
        """Train with the set's own train.yaml; returns the last checkpoint, and the validation loss behind
        each epoch."""
        command = [
            *(sys.executable, "-m", "speculators", "train"),
            *("--config", str(self.training_set / "train.yaml")),
            *("--epochs", str(epochs), "--num-workers", "2", "--draft-attn-impl", "sdpa"),
        ]
        print((self.training_set / "train.yaml").read_text(), flush=True)
        self.step("speculators_train", command)
        found = sorted(self.draft.glob("[0-9]*/val_metrics.json"), key=lambda path: int(path.parent.name))
        metrics = [json.loads(path.read_text()) for path in found]
        shown = []
        for number, one in enumerate(metrics):
            figures = {name: round(value, 4) for name, value in one.items() if isinstance(value, float)}
            shown.append(f"  epoch {number}: {figures}")
        losses = [one["loss_epoch"] for one in metrics]
        shown.append(f"validation loss {losses[0]:.4f} -> {losses[-1]:.4f}")
        print("\n".join([f"{self.draft}:", *shown]), flush=True)
        return found[-1].parent, losses


def prompts(sharegpt: Path | None) -> list[str]:
    """User turns of the demo, sums, and those of a ShareGPT file."""
    texts = []
    for line in CONVERSATIONS.read_text().splitlines():
        texts += [turn["content"] for turn in json.loads(line)["messages"] if turn["role"] == "user"]
    texts += [f"What is {number} plus {number}?" for number in range(200)]
    for row in json.loads(sharegpt.read_text()) if sharegpt else ():
        texts += [turn["value"][:400] for turn in row["conversations"] if turn["from"] == "human"]
    return list(dict.fromkeys(text for text in texts if isinstance(text, str) and text.strip()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("gpu-training"), help="scratch directory, new")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--prompts", type=Path, help="a ShareGPT file with more user turns")
    parser.add_argument("--cpu-plumbing", action="store_true", help="no GPU: up to the assembled set")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    engine = "eagle3_data.engines.transformers:TransformersEngine" if arguments.cpu_plumbing else None
    loop = Loop(arguments.work.resolve(), engine)
    target = loop.build_target()
    (loop.work / "prompts.json").write_text(json.dumps(prompts(arguments.prompts)))
    if arguments.cpu_plumbing:
        row = {"input_ids": [5, 6, 7, 8] * 5, "loss_mask": [0] * 10 + [1] * 10}
        rows = [{**row, "input_ids": [*row["input_ids"][:-1], 9 + n]} for n in range(20)]
        (loop.work / "own.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    else:
        loop.python("generate", GENERATE, target, "prompts.json", "own.jsonl")
    proof = loop.prove()
    print(f"extracted and validated: {proof.validated} samples, {proof.versions}", flush=True)
    loop.assemble()
    verified = [sys.executable, str(ROOT / "scripts/verify_training_set.py"), str(loop.training_set)]
    loop.step("verify", [*verified, "--results", str(loop.results)])
    if not arguments.cpu_plumbing:
        checkpoint, losses = loop.train(arguments.epochs)
        if not losses[-1] < losses[0]:
            sys.exit("the validation loss did not fall")
        loop.python("accept", ACCEPT, target, checkpoint)
        result = json.loads((loop.work / "acceptance.json").read_text())
        print(f"ACCEPTANCE {json.dumps(result)}", flush=True)
        if result["acceptance_length"] <= 1.05:
            sys.exit("the draft is hardly better than none")
    print(f"whole way: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
