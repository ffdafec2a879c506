#!/usr/bin/env python3
"""The gate of one batch's validation: succeed if no sample was rejected, else fail with the reasons; rejected
samples are extracted again by the next run. Standard library only."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.errors import InputError, SampleError
from eagle3_data.log import say
from eagle3_data.passes.batch_records import BatchRecord
from eagle3_data.passes.ledger import Gate
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.text import counted
from eagle3_data.validation.verdict import BatchVerdict, ValidationLedger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--batch", required=True)
    parser.add_argument(
        "--ledger", required=True, help="ledger of the job that should have validated the batch"
    )
    parser.add_argument(
        "--output", required=True, help="verdict to write (JSON): exists only if no sample is rejected"
    )
    arguments = parser.parse_args()
    run, batch = RunPaths(arguments.results), arguments.batch
    ledger = ValidationLedger.read(arguments.ledger)
    if reason := ledger.batches.get(batch):
        raise SampleError(f"batch {batch} could not be validated: {reason}")
    verdict = BatchVerdict.read(run.validation_record(batch))
    if batch not in ledger.batches or verdict.fingerprint != Gate.read(run.gate(batch)).fingerprint:
        raise InputError(
            f"{arguments.ledger} does not validate batch {batch} as it is now; run the same command again"
        )
    if verdict.rejected:
        verdict.write(run.rejected(batch))
        explain(run, verdict)
        raise SampleError(
            f"{len(verdict.rejected)} of {counted(verdict.samples, 'sample')} of batch {batch}"
            " rejected; run the same command to extract them again"
        )
    verdict.write(arguments.output)
    say(
        f"batch {batch}: {counted(verdict.samples, 'sample')}, {counted(verdict.tokens, 'token')},"
        f" none rejected; not proven: {'; '.join(verdict.not_proven)}"
    )


def explain(run: RunPaths, verdict: BatchVerdict) -> None:
    """Which samples, and why."""
    record = BatchRecord.find(PassPaths(run.extraction).record(verdict.batch))
    names = {sample.key: sample.sample_id for sample in record.samples} if record else {}
    for key, reason in verdict.rejected.items():
        say(f"sample {names.get(key, 'unknown')} ({key}): {reason}")


if __name__ == "__main__":
    cli.run(main)
