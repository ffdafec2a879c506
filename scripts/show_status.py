#!/usr/bin/env python3
"""Show what a run has done, what failed and why, what runs now, and what to run next. Works from any
terminal, also during a run: it only reads records. Standard library only."""

import argparse
import os
from dataclasses import replace
from pathlib import Path
from shlex import quote
from textwrap import indent

from eagle3_data import cli
from eagle3_data.errors import InputError
from eagle3_data.generation.status import GenerationStatus
from eagle3_data.passes.status import BatchStatus, RunStatus, describe_running
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.text import counted, table
from eagle3_data.validation.coverage import describe_proofs

SHOWN_CAUSES = 5
SHOWN_BATCHES = 20
RETRY, CONTINUE = "After fixing the cause, rerun only what is missing", "Run what is still missing"
TARGET = "TARGET"
"""Placeholder for the target in a command."""


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
        help=f"list every batch, not only the first {SHOWN_BATCHES} unfinished ones",
    )
    parser.add_argument(
        "--extraction-id",
        help=(
            "the extraction whose batches count (Snakemake sets it; empty if the layers are invalid); by"
            " default, that of the newest pass"
        ),
    )
    parser.add_argument(
        "--generation-id",
        help="the same of the target's own answers; empty if the data set's are trained",
    )
    parser.add_argument(
        "--failed",
        action="store_true",
        help="set by a Snakemake run that failed: name the logs, whatever the counts are",
    )
    parser.add_argument(
        "--command",
        help=(
            f"the command that was called, with {TARGET} in place of its target; used to suggest the next one"
        ),
    )
    arguments = parser.parse_args()
    cli.end_with_reader()
    results: Path = arguments.results
    status = RunStatus(results, arguments.extraction_id, arguments.failed)
    if arguments.extraction_id is None and not results.is_dir() and not status.logs.is_dir():
        raise InputError(
            f"there is no directory {results}; results are in results/<run>, below the directory where"
            " Snakemake was called"
        )
    generation = GenerationStatus(results, arguments.generation_id, arguments.failed)
    is_answered = True
    if generation.tokens is not None and arguments.generation_id != "":
        show_generation(generation, generation.tokens, arguments)
        is_answered = generation.is_done
    if is_answered:
        show_extraction(status, arguments)


def show_extraction(status: RunStatus, arguments: argparse.Namespace) -> None:
    """What is extracted, why it is not more, and what to run next."""
    results: Path = arguments.results
    if status.tokens is None:
        if arguments.part != "summary" or arguments.failed:
            print(f"{results}: nothing is tokenized yet; the logs are in {status.logs}")
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


def show_generation(status: GenerationStatus, prompts: BatchIndex, arguments: argparse.Namespace) -> None:
    """How far the target is with its answers, and why it is not further."""
    open_batches = [batch for batch in status.batches if not batch.is_done]
    if arguments.part != "summary":
        answered = [replace(batch, state="answered") if batch.is_done else batch for batch in status.batches]
        show_table(answered if arguments.all else open_batches, arguments.all, "conversations")
    if arguments.part == "table":
        return
    done = len(status.batches) - len(open_batches)
    print(f"\n{status.results}: {done} of {counted(len(status.batches), 'batch')} answered by the target")
    first = counted(prompts.tokens, "token")
    print(f"  {counted(prompts.samples, 'conversation')}, {first} in their first prompts")
    for remark in prompts.remarks:
        print(f"  asking: {remark}")
    if answers := status.answers:
        ends = {
            "ended by themselves": answers["stop"],
            "cut by generation.max_tokens": answers["length"],
            "cut by tokenization.max_length": answers["window"],
        }
        told = ", ".join(f"{number:,} {how}" for how, number in ends.items() if number)
        looping = f" ({answers['looping']:,} of them in a loop)" if answers["looping"] else ""
        total = counted(sum(ends.values()), "answer")
        print(f"  {total} in {counted(status.passes, 'pass')}: {told}{looping}")
    for lease in status.running():
        print(f"  running: {describe_running(lease)}")
    if open_batches:
        refusals = status.refusals()
        show_causes(status, refusals, arguments.failed)
        if arguments.failed or status.causes() or status.lost:
            show_command(status)
        elif not status.running():
            show_command(status, CONTINUE)


def show_counts(results: Path, status: RunStatus, tokens: BatchIndex) -> None:
    """How much is done, and what runs now."""
    done, validated = (
        sum(batch.is_done for batch in status.batches),
        sum(batch.state == "validated" for batch in status.batches),
    )
    print(f"\n{results}: {done} of {counted(len(status.batches), 'batch')} extracted, {validated} validated")
    print(
        f"  {counted(tokens.samples, 'sample')}, {counted(tokens.tokens, 'token')};"
        f" {status.written_bytes / 2**30:.2f} GiB written in {counted(status.passes, 'pass')}"
    )
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(tokens.dropped.items()))
    if dropped:
        print(f"  dropped by tokenization: {dropped}")
    for remark in tokens.remarks:
        print(f"  tokenization: {remark}")
    proofs = status.proofs
    for text in describe_proofs(proofs.applied):
        print(f"  proof: {text}")
    for text in proofs.not_proven:
        print(f"  not proven: {text}")
    if status.has_training_set:
        print(f"  training set: {results}/training_set")
        if draft := status.draft_vocabulary:
            print(f"  draft vocabulary: {draft}")
    for lease in status.running():
        print(f"  running: {describe_running(lease)}")


def show_causes(status: RunStatus, refusals: list[str], failed: bool) -> None:
    """The distinct causes, and where their logs are."""
    causes = status.causes()
    for line in refusals[:SHOWN_CAUSES]:
        print(f"  {line}")
    if lost := status.lost:
        print(f"  {lost.describe(status.logs)}")
    for cause, count in causes.most_common(SHOWN_CAUSES):
        print(f"  {counted(count, 'sample')}: {cause}")
    wrong = status.wrong_states()
    for fault in wrong[:SHOWN_CAUSES]:
        print(f"  wrong states: {fault}")
    states = {batch.state for batch in status.batches}
    logs = [f"{status.check}.log"] if refusals else []
    if causes or lost:
        logs += [status.rule, status.rule.replace("_pass", "_batch")]
    past_extraction = failed and states <= {"extracted", "validated"}
    if "rejected" in states or (past_extraction and "extracted" in states):
        logs += ["validate_pass", "validate_batch"]
    if wrong:
        logs += ["prove_target.log"]
    elif past_extraction and "extracted" not in states:
        logs += ["assemble_training_set.log"]
    if logs:
        print(f"  logs: {', '.join(f'{status.logs}/{name}' for name in logs)}")
    elif failed or not status.running():
        print(f"  logs: {status.logs}")


def show_next(status: RunStatus, command: str) -> None:
    """The next step after a successful run."""
    if not all(batch.is_done for batch in status.batches):
        if status.has_report:
            print(f"  compatible: the check found no failures ({status.results}/compatibility)")
        print("  next, to extract the hidden states:")
        print(f"    {command.replace(TARGET, 'extract')}")
    elif not status.has_training_set:
        print("  next, to validate and assemble the training set:")
        print(f"    {command.replace(TARGET, 'all')}")
    else:
        for form, training in status.training_commands.items():
            print(f"  next, to train a draft with {form} ({status.results}/training_set/README.md):")
            print(f"    {training}")


def show_command(status: RunStatus, purpose: str = RETRY) -> None:
    """What to run next: the command that Snakemake was called with, now or for the newest pass."""
    if command := os.environ.get("EAGLE3_DATA_COMMAND") or status.command:
        there = "" if status.directory == Path.cwd() else f"cd {quote(str(status.directory))} && "
        print(f"  {purpose}:")
        print(f"    {there}{command}")
    else:
        print(f"  {purpose} with the command you started it with")
    print("  (after a kill -9 of Snakemake itself, first: snakemake --unlock)")


def show_table(batches: list[BatchStatus], everything: bool, samples: str = "samples") -> None:
    """Batch, status, size, and why."""
    shown = batches if everything else batches[:SHOWN_BATCHES]
    if shown:
        rows = [(one.batch, one.state, f"{one.samples:,}", f"{one.tokens:,}", one.detail) for one in shown]
        print("\n" + indent(table([("batch", "status", samples, "tokens", ""), *rows], {2, 3}), "  "))
    if len(shown) < len(batches):
        print(f"  ... and {len(batches) - len(shown)} more; --all lists every batch")
    print()


if __name__ == "__main__":
    cli.run(main)
