#!/usr/bin/env python3
"""Say what a run has done, what failed and why, what runs now, and what to run next. Works from any terminal,
also while a run holds Snakemake's lock: it only reads records. Standard library only."""

import argparse
import os
from collections import Counter
from pathlib import Path
from shlex import quote

from eagle3_data import cli
from eagle3_data.errors import InputError
from eagle3_data.passes.status import BatchStatus, RunStatus, describe_running
from eagle3_data.records.batch_index import BatchIndex

SHOWN_CAUSES = 5
SHOWN_BATCHES = 20
RETRY, CONTINUE = "After fixing the cause, rerun only what is missing", "Run what is still missing"
TARGET = "TARGET"
"""Stands in a command for what it asks for."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--results",
        required=True,
        type=Path,
        help="the run's results directory, results/<run>; its logs are in logs/<run>",
    )
    parser.add_argument(
        "--part",
        choices=["table", "summary", "both"],
        default="both",
        help="the table of batches, the summary, or both",
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=f"every batch in the table, not only up to {SHOWN_BATCHES} unfinished ones",
    )
    parser.add_argument(
        "--extraction-id",
        help=(
            "what counts as extracted (Snakemake gives it, empty where there is none); by default the newest"
            " pass's"
        ),
    )
    parser.add_argument(
        "--failed",
        action="store_true",
        help="the run of Snakemake that calls this has failed: say where to look, whatever the counts are",
    )
    parser.add_argument(
        "--command",
        help=f"the command that calls this, with {TARGET} in place of what it asks for: names the next one",
    )
    arguments = parser.parse_args()
    cli.end_with_reader()
    results: Path = arguments.results
    status = RunStatus(results, arguments.extraction_id, arguments.failed)
    if arguments.extraction_id is None and not results.is_dir() and not status.logs.is_dir():
        raise InputError(
            f"there is no directory {results}; a run's results are in results/<run>, where Snakemake was"
            " called"
        )
    if status.tokens is None:
        if arguments.part != "summary" or arguments.failed:
            print(f"{results}: nothing is tokenized yet; rules' logs are below {status.logs}")
        if arguments.failed:
            show_command(status)
        return
    if arguments.part != "summary":
        show_table(
            status.batches if arguments.all else [batch for batch in status.batches if not batch.is_done],
            arguments.all,
        )
    if arguments.part != "table":
        show_counts(results, status, status.tokens)
        refusals = status.refusals()
        if arguments.failed or (refusals and arguments.extraction_id is None):
            # From another terminal, the counts may be those of an earlier configuration than the one that
            # the check refused.
            show_causes(status, refusals, arguments.failed)
            show_command(status)
        elif arguments.command:
            show_next(status, arguments.command)
        elif not all(batch.is_done for batch in status.batches):
            show_causes(status, refusals, failed=False)
            if status.causes() or status.lost:
                show_command(status)
            elif not status.running():
                show_command(status, CONTINUE)


def show_counts(results: Path, status: RunStatus, tokens: BatchIndex) -> None:
    """How many of how many, and what runs now."""
    done, validated = (
        sum(batch.is_done for batch in status.batches),
        sum(batch.state == "validated" for batch in status.batches),
    )
    print(f"\n{results}: {done} of {len(status.batches)} batches extracted, {validated} validated")
    print(
        f"  {tokens.samples} samples, {tokens.tokens:,} tokens; {status.written_bytes / 2**30:.2f} GiB"
        f" written in {status.passes} passes"
    )
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(tokens.dropped.items()))
    if dropped:
        print(f"  dropped by tokenization: {dropped}")
    for remark in tokens.remarks:
        print(f"  tokenization: {remark}")
    for text, batches in Counter(text for one in status.batches for text in one.not_proven).items():
        print(f"  not proven (of {batches} batch{'' if batches == 1 else 'es'}): {text}")
    if status.has_training_set:
        print(f"  training set: {results}/training_set")
    for lease in status.running():
        print(f"  running: {describe_running(lease)}")


def show_causes(status: RunStatus, refusals: list[str], failed: bool) -> None:
    """The distinct causes, and the logs of the rules that met them."""
    causes = status.causes()
    for line in refusals[:SHOWN_CAUSES]:
        print(f"  {line}")
    if lost := status.lost:
        print(f"  {lost.told(status.logs)}")
    for cause, count in causes.most_common(SHOWN_CAUSES):
        print(f"  {count} samples: {cause}")
    states = {batch.state for batch in status.batches}
    logs = ["check_compatibility.log"] if refusals else []
    if causes or lost:
        logs += ["extract_pass", "extract_batch"]
    past_extraction = failed and states <= {"extracted", "validated"}
    if "rejected" in states or (past_extraction and "extracted" in states):
        logs += ["validate_batch"]
    if past_extraction and "extracted" not in states:
        logs += ["assemble_training_set.log"]
    if logs:
        print(f"  logs: {', '.join(f'{status.logs}/{name}' for name in logs)}")
    elif failed or not status.running():
        print(f"  the logs of the rules are below {status.logs}")


def show_next(status: RunStatus, command: str) -> None:
    """What comes after a run that ended well."""
    if not all(batch.is_done for batch in status.batches):
        if status.has_report:
            print(f"  compatible: the check found nothing that would fail ({status.results}/compatibility)")
        print("  next, to extract the hidden states:")
        print(f"    {command.replace(TARGET, 'extract')}")
    elif not status.has_training_set:
        print("  next, to validate and assemble the training set:")
        print(f"    {command.replace(TARGET, 'all')}")


def show_command(status: RunStatus, purpose: str = RETRY) -> None:
    """What goes on: the command that was given, as Snakemake tells it, or else the newest pass."""
    if command := os.environ.get("EAGLE3_DATA_COMMAND") or status.command:
        there = "" if status.directory == Path.cwd() else f"cd {quote(str(status.directory))} && "
        print(f"  {purpose}:")
        print(f"    {there}{command}")
    else:
        print(f"  {purpose} with the command you started it with")
    print("  (after a kill -9 of Snakemake itself, first: snakemake --unlock)")


def show_table(batches: list[BatchStatus], everything: bool) -> None:
    """Batch, state, size, and why."""
    shown = batches if everything else batches[:SHOWN_BATCHES]
    if shown:
        print(f"\n  {'batch':<6} {'state':<10} {'samples':>8} {'tokens':>12}")
    for batch in shown:
        print(
            f"  {batch.batch:<6} {batch.state:<10} {batch.samples:>8} {batch.tokens:>12,}"
            f"  {batch.detail}".rstrip()
        )
    if len(shown) < len(batches):
        print(f"  ... and {len(batches) - len(shown)} more; --all lists every batch")
    print()


if __name__ == "__main__":
    cli.run(main)
