#!/usr/bin/env python3
"""Say what a run has done, what failed and why, what runs now, and what to run next. Works from any terminal, also while a run holds
Snakemake's lock: it only reads records. Standard library only."""

import argparse
import os
from pathlib import Path
from typing import Any

from eagle3_data import cli
from eagle3_data.extraction.status import BatchStatus, RunStatus, describe_running

SHOWN_CAUSES = 5
SHOWN_BATCHES = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory, results/<run>; its logs are in logs/<run>")
    parser.add_argument("--part", choices=["table", "summary", "both"], default="both", help="the table of batches, the summary, or both")
    parser.add_argument("--all", action="store_true", help=f"every batch in the table, not only up to {SHOWN_BATCHES} unfinished ones")
    arguments = parser.parse_args()
    logs = Path("logs") / arguments.results.name
    status = RunStatus(arguments.results)
    if status.tokens is None:
        if arguments.part != "summary":
            print(f"{arguments.results}: nothing is tokenized yet; rules' logs are below {logs}")
        return
    batches = status.batches()
    if arguments.part != "summary":
        show_table(batches if arguments.all else [batch for batch in batches if not batch.is_done], arguments.all)
    if arguments.part != "table":
        show_summary(arguments.results, logs, status, status.tokens, batches)


def show_summary(results: Path, logs: Path, status: RunStatus, tokens: dict[str, Any], batches: list[BatchStatus]) -> None:
    """How many of how many, the distinct causes, where the logs are, and the command that goes on."""
    done, validated = sum(batch.is_done for batch in batches), sum(batch.state == "validated" for batch in batches)
    print(f"\n{results}: {done} of {len(batches)} batches extracted, {validated} validated")
    print(f"  {tokens['samples']} samples, {tokens['tokens']:,} tokens; {status.written_bytes / 2**30:.2f} GiB written in {status.passes} passes")
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(tokens["dropped"].items()))
    if dropped:
        print(f"  dropped by tokenization: {dropped}")
    if (results / "training_set/provenance.json").exists():
        print(f"  training set: {results}/training_set")
    running = status.running()
    for lease in running:
        print(f"  running: {describe_running(lease)}")
    if done == len(batches):
        return
    causes = status.causes()
    if status.passes or causes:
        for cause, count in causes.most_common(SHOWN_CAUSES):
            print(f"  {count} samples: {cause}")
        rules = ["extract_pass", "extract_batch", *(["validate_batch"] if any(batch.state == "rejected" for batch in batches) else [])]
        print(f"  logs: {', '.join(f'{logs}/{rule}' for rule in rules)}")
    elif not running:
        print(f"  no pass has ended yet; where a rule failed, its log below {logs} says why")
    print("  once the cause is mended, this retries exactly what is missing:")
    print(f"    {os.environ.get('EAGLE3_DATA_COMMAND', 'snakemake --cores all extract')}")
    print("  (after a kill -9 of Snakemake itself, first: snakemake --unlock)")


def show_table(batches: list[BatchStatus], everything: bool) -> None:
    """Batch, state, size, and why."""
    shown = batches if everything else batches[:SHOWN_BATCHES]
    if shown:
        print(f"\n  {'batch':<6} {'state':<10} {'samples':>8} {'tokens':>12}")
    for batch in shown:
        print(f"  {batch.batch:<6} {batch.state:<10} {batch.samples:>8} {batch.tokens:>12,}  {batch.detail}".rstrip())
    if len(shown) < len(batches):
        print(f"  ... and {len(batches) - len(shown)} more; --all lists every batch")
    print()


if __name__ == "__main__":
    cli.run(main)
