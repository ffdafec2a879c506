#!/usr/bin/env python3
"""Run the workflow's own scripts on a CUDA machine, without Snakemake, for both demo targets, and print what
it took.

    python tests/gpu/prove_on_gpu.py [--tensor-parallel N] [--work DIR] [--targets tiny-llama tiny-kimi]

Builds each target, tokenizes the demo conversations, checks compatibility, extracts (canary included) with
the installed vLLM >= 0.26, and validates every batch. Exits non-zero at the first thing that is not right.
Needs no network and no SLURM.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CONVERSATIONS = ROOT / "config/demo/conversations.jsonl"


@dataclass(frozen=True)
class Proof:
    target: str
    tensor_parallel: int
    dtype: str
    versions: str
    canary_s: float
    load_s: float
    samples: int
    tokens_per_s: float
    validated: int


class Prover:
    def __init__(self, work: Path, target: str, tensor_parallel: int) -> None:
        self.target, self.tensor_parallel = target, tensor_parallel
        self.work = work / f"{target}-tp{tensor_parallel}"
        self.results = self.work / "results/gpu"
        self.logs = self.work / "logs"
        self.work.mkdir(parents=True, exist_ok=True)
        self.logs.mkdir(exist_ok=True)
        self.config = self.work / "config.json"
        values = json.dumps(
            {
                "target": {"path": f"../{target}"},
                "data": {"sources": [{"path": str(CONVERSATIONS)}]},
                "tokenization": {"max_length": 1024, "too_long": "drop", "batch_tokens": 3000},
                "extraction": {
                    "tensor_parallel": tensor_parallel,
                    "engine_arguments": {"enforce_eager": True, "gpu_memory_utilization": 0.3},
                },
            }
        )
        self.config.write_text(values)

    def script(self, name: str, *arguments: str | Path) -> float:
        """Run one of the workflow's scripts as its rule does; returns the seconds it took."""
        started = time.monotonic()
        log = self.logs / f"{name}.log"
        with open(log, "w") as stderr:
            command = [sys.executable, str(ROOT / f"scripts/{name}.py"), *map(str, arguments)]
            code = subprocess.run(command, cwd=self.work, stderr=stderr, check=False).returncode
        if code != 0:
            engine_log = self.logs / "engine.log"
            tail = engine_log.read_text(errors="replace")[-6000:] if engine_log.exists() else ""
            sys.exit(
                f"{self.target}, tensor parallel {self.tensor_parallel}: {name} ended with"
                f" {code}\n{log.read_text()[-6000:]}\n--- engine\n{tail}"
            )
        return time.monotonic() - started

    def prove(self) -> Proof:
        results = self.results
        if not (self.work.parent / self.target).exists():
            self.script(
                "build_demo_target",
                "--target",
                self.target,
                "--conversations",
                CONVERSATIONS,
                "--output",
                self.work.parent / self.target,
            )
        self.script("describe_target", "--target", f"../{self.target}", "--output", results / "target.json")
        self.script(
            "tokenize_dataset",
            "--config",
            self.config,
            "--target",
            results / "target.json",
            "--output-dir",
            results / "tokens",
        )
        report = results / "compatibility/report.json"
        common = [
            "--config",
            self.config,
            "--target",
            results / "target.json",
            "--batches",
            results / "tokens/batches.json",
        ]
        self.script("check_compatibility", "installed", *common, "--output", report)
        ledger_path = results / "extraction/passes/001/0.json"
        engine_log = self.logs / "engine.log"
        extract = [
            "--pass-number",
            "001",
            "--stripe",
            "0",
            "--engine-log",
            engine_log,
            "--ledger",
            ledger_path,
        ]
        elapsed_s = self.script("extract_pass", "--config", self.config, "--results", results, *extract)
        ledger = json.loads(ledger_path.read_text())
        validated = results / "validation/passes/001/001/0.json"
        validate = ["--results", results, "--extracted", "001/0", "--threads", "8", "--ledger", validated]
        self.script("validate_pass", "--config", self.config, *validate)
        for batch, outcome in ledger["batches"].items():
            fingerprint = ["--fingerprint", outcome["fingerprint"]]
            self.script(
                "extract_batch",
                "--batch",
                batch,
                *fingerprint,
                "--ledger",
                ledger_path,
                "--output",
                results / f"extraction/batches/{batch}.json",
            )
            self.script(
                "validate_batch",
                "--results",
                results,
                "--batch",
                batch,
                "--ledger",
                validated,
                "--output",
                results / f"validation/{batch}.json",
            )
        return Proof(
            target=self.target,
            tensor_parallel=self.tensor_parallel,
            dtype="bfloat16",
            versions=" ".join(f"{name} {version}" for name, version in ledger["versions"].items()),
            canary_s=elapsed_s - ledger["load_s"] - ledger["extraction_s"],
            load_s=ledger["load_s"],
            samples=ledger["samples_extracted"],
            tokens_per_s=ledger["tokens_extracted"] / ledger["extraction_s"],
            validated=sum(
                json.loads(path.read_text())["samples"] for path in results.glob("validation/*.json")
            ),
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("gpu-proof"),
        help="scratch directory; must not hold an earlier proof",
    )
    parser.add_argument("--targets", nargs="+", default=["tiny-llama", "tiny-kimi"])
    arguments = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    print("| target | TP | dtype | versions | canary and rest s | load s | samples | tokens/s | validated |")
    print("|---|---|---|---|---|---|---|---|---|")
    for target in arguments.targets:
        p = Prover(arguments.work.resolve(), target, arguments.tensor_parallel).prove()
        figures = f"{p.canary_s:.0f} | {p.load_s:.0f} | {p.samples} | {p.tokens_per_s:.0f} | {p.validated}"
        print(f"| {p.target} | {p.tensor_parallel} | {p.dtype} | {p.versions} | {figures} |", flush=True)
        if not 0 < p.samples == p.validated:
            sys.exit(f"{p.samples} samples extracted, {p.validated} validated")


if __name__ == "__main__":
    main()
