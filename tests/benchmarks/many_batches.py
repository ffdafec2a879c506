"""What a thousand batches cost beside the extraction itself: planning, gates, and a run that finds nothing to
do.

    PYTHONPATH=scripts:tests python tests/benchmarks/many_batches.py --batches 1000 --output many_batches.json

The samples are tiny and the engine is a fake, so what is measured is Snakemake and our own planning.
`--profile` also tells where the time of the run that finds nothing to do goes.
"""

from __future__ import annotations

import argparse
import json
import pstats
import subprocess
import tempfile
import time
from pathlib import Path

from integration.fixtures import build_target, fast_config
from integration.workflow import Run, Workflow, conversation, write_jsonl

TARGETS = {"dry_run_s": 30.0, "nothing_to_do_s": 30.0, "gate_s": 0.2}
SHOWN_FUNCTIONS = 25


def prepare(directory: Path, batches: int) -> Workflow:
    """A tokenized run of so many batches, one short conversation each."""
    target = build_target("tiny-llama", directory / "target")
    workflow = Workflow(directory / "run", fast_config(target))
    workflow.config["tokenization"] = {"max_length": 512, "batch_tokens": 1}
    workflow.config["extraction"]["in_flight_tokens"] = 8192
    write_jsonl(workflow.directory / "data.jsonl", [conversation(number) for number in range(batches)])
    run = workflow.run("results/test/compatibility/report.json")
    assert run.returncode == 0, run.output
    assert len(workflow.batches()) == batches
    return workflow


def timed(workflow: Workflow, *arguments: str) -> tuple[Run, float]:
    started = time.monotonic()
    run = workflow.run(*arguments, timeout=7200)
    assert run.returncode == 0, run.output[-5000:]
    return run, time.monotonic() - started


def measure(workflow: Workflow, batches: int) -> dict[str, float]:
    _, dry_run_s = timed(workflow, "--dry-run", "--quiet", "all", "--", "extract")
    full, full_run_s = timed(workflow, "extract")
    pass_s = full.passes["001/0"]["elapsed_s"]
    again, nothing_to_do_s = timed(workflow, "extract")
    assert again.nothing_done
    return {
        "batches": batches,
        "dry_run_s": dry_run_s,
        "full_run_s": full_run_s,
        "pass_s": pass_s,
        "overhead_per_batch_s": (full_run_s - pass_s) / batches,
        "gate_s": (full_run_s - pass_s - dry_run_s) / batches,
        "nothing_to_do_s": nothing_to_do_s,
    }


def profile(workflow: Workflow, statistics: Path) -> None:
    """Print where the time of a run goes that has nothing to do, ours and Snakemake's."""
    python, *snakemake = workflow.arguments("extract")
    command = [python, "-m", "cProfile", "-o", str(statistics), *snakemake]
    subprocess.run(
        command, cwd=workflow.directory, env=workflow.environment(), capture_output=True, check=True
    )
    pstats.Stats(str(statistics)).sort_stats("cumulative").print_stats(
        r"eagle3_data|snakemake/|\.smk", SHOWN_FUNCTIONS
    )
    pstats.Stats(str(statistics)).sort_stats("tottime").print_stats(SHOWN_FUNCTIONS)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1000)
    parser.add_argument("--output", type=Path, help="file for the figures (JSON)")
    parser.add_argument(
        "--profile", type=Path, help="file for cProfile's statistics of the run that finds nothing to do"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="many-batches-") as directory:
        workflow = prepare(Path(directory), arguments.batches)
        figures = measure(workflow, arguments.batches)
        if arguments.profile:
            profile(workflow, arguments.profile)
    for name, value in figures.items():
        target = f"   (target: under {TARGETS[name]:g})" if name in TARGETS else ""
        print(f"{name:<22} {value:10.3f}{target}")
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
