#!/usr/bin/env python3
"""The data set's answers beside the target's own, on a CUDA machine: the same questions, two training sets,
the same training, and the acceptance length of both drafts in vLLM on questions that neither was trained on.

    python tests/gpu/generate_on_gpu.py [--work DIR] [--epochs 10] [--conversations SHAREGPT.json]
        [--steps sets train measure]

About ten minutes on one GPU with tiny-llama. Needs no network; exits non-zero where the draft that was
trained on the target's own answers is not the better one. The same command goes on where it was stopped, and
--steps names what to do of it: both training sets, both trainings (at the same time), both measurements.
--cpu-plumbing goes as far as the two assembled sets, on the CPU, to test this script without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from prove_on_gpu import CONVERSATIONS, ROOT
from train_on_gpu import ACCEPT, TARGET, Loop

Talk = list[dict[str, str]]
STEPS = ("sets", "train", "measure")
HELD_OUT = 10
"""One in so many questions is not trained on, but measured with."""
ANSWER_TOKENS = 96
IDS = """
import json, sys
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
texts = [
    tokenizer.apply_chat_template([turn], tokenize=False, add_generation_prompt=True)
    for turn in json.load(open(sys.argv[2]))
]
ids = [tokenizer(text, add_special_tokens=False)["input_ids"][:400] for text in texts]
json.dump(ids, open("held_out.json", "w"))
"""


class Answers(Loop):
    """The way to a draft with the answers of `responses`, the dataset or the target."""

    def __init__(self, work: Path, responses: str, engine: str | None) -> None:
        super().__init__(work / responses, engine)
        self.responses = responses
        self.answers = self.results / "generation/answers.json"
        self.trained, self.measured = self.work / "trained.json", self.work / "acceptance.json"
        link = self.work.parent / TARGET
        if responses == "target" and not link.is_symlink():  # the same one
            link.symlink_to(work / "dataset" / TARGET)
        config: dict[str, Any] = json.loads(self.config.read_text())
        config["data"] = {"sources": [{"path": "talks.jsonl"}], "train_ratio": 0.9}
        config["tokenization"] = {"max_length": 512, "batch_tokens": 50_000}
        config["training_set"]["formats"] = ["speculators"]
        config["generation"] = {
            "responses": responses,
            "max_tokens": ANSWER_TOKENS,
            "looping_answers": "keep",
        }
        if engine:
            config["generation"]["engine_arguments"] = {"enforce_eager": True}
        self.config.write_text(json.dumps(config))

    def script(self, name: str, *arguments: str | Path) -> float:
        if name != "tokenize_dataset" or self.responses == "dataset":
            return super().script(name, *arguments)
        started = time.monotonic()
        return (
            super().script(name, *arguments, "--generation-id", self.generate(), "--answers", self.answers)
            + time.monotonic()
            - started
        )

    def generate(self) -> str:
        """Have the target answer; returns the generation id."""
        prompts, target = self.results / "prompts", self.results / "target.json"
        super().script(
            "plan_prompts", *("--config", self.config, "--target", target, "--output-dir", prompts)
        )
        ledger = self.results / "generation/passes/001/0.json"
        seconds = super().script(
            "generate_pass",
            *("--config", self.config, "--results", self.results, "--pass-number", "001", "--stripe", "0"),
            *("--engine-log", self.logs / "engine.log", "--ledger", ledger),
        )
        facts = json.loads(ledger.read_text())
        for batch, outcome in facts["batches"].items():
            super().script(
                "generate_batch",
                *("--batch", batch, "--fingerprint", outcome["fingerprint"], "--ledger", ledger),
                *("--output", self.results / f"generation/batches/{batch}.json"),
            )
        gates = sorted((self.results / "generation/batches").glob("*.json"))
        super().script("collect_answers", "--gates", *gates, "--output", self.answers)
        if facts["load_s"]:  # not where all was answered before
            print(
                f"answered: {facts['samples_extracted']} questions, {facts['tokens_extracted']} tokens in"
                f" {facts['extraction_s']:.1f} s behind a load of {facts['load_s']:.0f} s ({seconds:.0f} s),"
                f" {facts['tokens_extracted'] / facts['extraction_s']:.0f} tokens/s; {facts['answers']}",
                flush=True,
            )
        return str(facts["extraction_id"])

    def make_set(self, trained: list[Talk], held_out: list[Talk]) -> None:
        """Up to the verified training set; what was begun is begun again."""
        if (self.training_set / "README.md").exists():
            return
        started = time.monotonic()
        shutil.rmtree(self.results, ignore_errors=True)
        self.build_target()
        rows = "".join(json.dumps({"messages": messages}) + "\n" for messages in trained)
        (self.work / "talks.jsonl").write_text(rows)
        (self.work / "questions.json").write_text(json.dumps([messages[0] for messages in held_out]))
        proof = self.prove()
        print(f"{self.responses}: {proof.validated} samples validated, {proof.versions}", flush=True)
        self.assemble()
        verified = [sys.executable, str(ROOT / "scripts/verify_training_set.py"), str(self.training_set)]
        self.step("verify", [*verified, "--results", str(self.results)])
        print(f"{self.responses}: training set made in {time.monotonic() - started:.0f} s", flush=True)

    def make_draft(self, epochs: int) -> None:
        if self.trained.exists():
            return
        shutil.rmtree(self.draft, ignore_errors=True)
        checkpoint, losses = self.train(epochs)
        self.trained.write_text(json.dumps({"checkpoint": str(checkpoint), "validation_losses": losses}))

    def measure(self) -> float:
        """The draft's acceptance length."""
        if not self.measured.exists():
            target = self.work.parent / TARGET
            self.python("ids", IDS, target, "questions.json")
            self.python("accept", ACCEPT, target, json.loads(self.trained.read_text())["checkpoint"])
        result = json.loads(self.measured.read_text())
        print(f"ACCEPTANCE {self.responses} {json.dumps(result)}", flush=True)
        return float(result["acceptance_length"])


def talks(sharegpt: Path | None) -> list[Talk]:
    """Questions with the data set's answers: the first of each of the demo's conversations, sums, and all of
    a ShareGPT file."""
    found = []
    for line in CONVERSATIONS.read_text().splitlines():
        found += pairs([(turn["role"], turn["content"]) for turn in json.loads(line)["messages"]])
    for number in range(200):
        found.append(
            [*user(f"What is {number} plus {number}?"), {"role": "assistant", "content": f"{2 * number}"}]
        )
    for row in json.loads(sharegpt.read_text()) if sharegpt else ():
        roles = {"human": "user", "gpt": "assistant"}
        found += pairs([(roles.get(turn["from"], ""), turn["value"]) for turn in row["conversations"]])
    return list({talk[0]["content"]: talk for talk in found}.values())


def user(text: str) -> Talk:
    return [{"role": "user", "content": text}]


def pairs(turns: list[tuple[str, Any]]) -> list[Talk]:
    """Each question of at most 400 letters with its answer, as a conversation of its own."""
    return [
        [*user(one[1]), {"role": "assistant", "content": two[1]}]
        for one, two in pairwise(turns)
        if (one[0], two[0]) == ("user", "assistant")
        and all(isinstance(text, str) and text.strip() for text in (one[1], two[1]))
        and len(one[1]) <= 400
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("gpu-generation"), help="scratch directory, new")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--conversations", type=Path, help="a ShareGPT file with more of them")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS)
    parser.add_argument("--cpu-plumbing", action="store_true", help="no GPU: up to the assembled sets")
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    engine = "eagle3_data.engines.transformers:TransformersEngine" if arguments.cpu_plumbing else None
    work = arguments.work.resolve()
    all_talks = talks(arguments.conversations)
    held_out, trained = all_talks[::HELD_OUT], [talk for at, talk in enumerate(all_talks) if at % HELD_OUT]
    if arguments.cpu_plumbing:
        trained, arguments.steps = trained[:30], ["sets"]
    print(f"{len(trained)} questions to train on, {len(held_out)} held out", flush=True)
    loops = [Answers(work, responses, engine) for responses in ("dataset", "target")]
    if "sets" in arguments.steps:
        for loop in loops:
            loop.make_set(trained, held_out)
    if "train" in arguments.steps:
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda loop: loop.make_draft(arguments.epochs), loops))
    if "measure" in arguments.steps:
        dataset, target = (loop.measure() for loop in loops)
        if not target > dataset:
            sys.exit("the target's own answers made no better draft")


if __name__ == "__main__":
    main()
