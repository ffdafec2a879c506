"""The gate of one batch: it succeeds if a pass completed the batch, else it fails with the recorded causes.
Standard library only, so that a thousand gates take seconds."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from eagle3_data.errors import Eagle3DataError, SampleError, headline
from eagle3_data.log import say
from eagle3_data.passes.ledger import COMPLETE, BatchOutcome, Gate, Ledger
from eagle3_data.text import counted

FULL_TEXTS = 3
"""How many failed samples are shown with their traceback; of the others, only the headline is shown."""


def run_gate(description: str | None) -> None:
    """A script that is one gate; `description` is its help."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch", required=True)
    parser.add_argument("--fingerprint", required=True, help="the batch's current fingerprint")
    parser.add_argument(
        "--ledger", required=True, help=("ledger of the pass that should have completed the batch")
    )
    parser.add_argument(
        "--output", required=True, help="target to write (JSON): exists only if the batch is complete"
    )
    arguments = parser.parse_args()
    ledger = Ledger.read(arguments.ledger)
    outcome = ledger.batches.get(arguments.batch)
    if outcome is None:
        raise SampleError(
            f"{arguments.ledger} does not mention batch {arguments.batch}; run the same command again"
        )
    if outcome.fingerprint != arguments.fingerprint:
        raise SampleError(
            f"batch {arguments.batch} has changed since {arguments.ledger} was written; run the same command"
            " again"
        )
    if outcome.state != COMPLETE:
        explain(arguments.batch, ledger, outcome, Path(arguments.ledger))
        raise SampleError(
            f"batch {arguments.batch} is {outcome.state.replace('_', ' ')}. After fixing the cause,"
            " the same command reruns only what is missing"
        )
    if outcome.left_out:
        say(
            f"batch {arguments.batch} is complete without {counted(len(outcome.left_out), 'failed sample')}"
            " (extraction.max_failed_fraction)"
        )
    gate = Gate(arguments.batch, arguments.fingerprint, arguments.ledger, outcome.samples, outcome.left_out)
    gate.write(arguments.output)


def explain(batch: str, ledger: Ledger, outcome: BatchOutcome, path: Path) -> None:
    """Say why the batch is incomplete: each failed sample, then why the rest was not reached."""
    from eagle3_data.passes.batch_records import FailureRecord  # not needed by a gate that succeeds

    if outcome.failed:
        say(
            f"batch {batch}: {len(outcome.failed)} of {outcome.samples} samples failed; engine output:"
            f" {ledger.engine_log}"
        )
    for index, failed in enumerate(outcome.failed):
        try:
            failure = FailureRecord.read(failed.record).failure
        except Eagle3DataError as error:
            say(headline(error))
            continue
        text = failure.render() if index < FULL_TEXTS else failure.summary
        say(f"\n--- sample {failed.sample_id} ({failed.record})\n{text}")
    if outcome.not_reached:
        say(
            f"batch {batch}: {outcome.not_reached} of {outcome.samples} samples were not reached:"
            f" {shared_cause(batch, ledger, path)}"
        )


def shared_cause(batch: str, ledger: Ledger, path: Path) -> str:
    """Why the pass ended early. The first gate gives the whole cause; a thousand others only say where to
    find it."""
    if not ledger.failure:
        return "no cause was recorded"
    teller = first_to_tell(batch, path.with_suffix(".told"))
    if teller != batch:
        return f"for the cause, see the log of batch {teller}, or {path}"
    return ledger.failure.render()


def first_to_tell(batch: str, path: Path) -> str:
    """The batch named by `path`: the first that asked. Gates run side by side, so the name is there whole or
    not at all."""
    mine = path.with_name(f".{path.name}.{batch}")
    mine.write_text(batch, encoding="utf-8")
    try:
        os.link(mine, path)
    except FileExistsError:
        return path.read_text(encoding="utf-8")
    finally:
        mine.unlink()
    return batch
