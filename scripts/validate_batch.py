#!/usr/bin/env python3
"""Check the states of one batch: structure, numbers, checksum, greedy token. Rejected samples are extracted
again by the next run."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.config import Extraction, Target, load_section
from eagle3_data.errors import InputError, SampleError
from eagle3_data.identity import identify_extraction
from eagle3_data.log import say
from eagle3_data.passes.ledger import Gate
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.target import TargetDescription, require_described
from eagle3_data.text import counted
from eagle3_data.validation.head import Head, read_head
from eagle3_data.validation.samples import Unknown, validate_samples
from eagle3_data.validation.verdict import BatchVerdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config file with sections extraction and target")
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--batch", required=True)
    parser.add_argument(
        "--output", required=True, help="verdict to write (JSON): exists only if every sample passes"
    )
    arguments = parser.parse_args()
    extraction = load_section(arguments.config, "extraction", Extraction)
    run = RunPaths(arguments.results)
    target = TargetDescription.read(run.target)
    identity = identify_extraction(target, extraction)
    entry = BatchIndex.read(run.batches).batches[arguments.batch]
    left_out = {sample.key for sample in Gate.read(run.gate(arguments.batch)).left_out}
    all_samples = SampleFile(run.samples).samples(entry.row_group)
    samples = [sample for sample in all_samples if sample.key not in left_out]
    store = Store(extraction.store, identity.extraction_id)
    trust_remote_code = load_section(arguments.config, "target", Target).trust_remote_code
    require_described(target, run.target)
    head = find_head(Path(target.path), trust_remote_code)
    verdict = validate_samples(samples, store, identity, target.hidden_size, head)
    record = BatchVerdict(
        batch=arguments.batch,
        fingerprint=identity.batch_fingerprint(entry.fingerprint),
        extraction_id=identity.extraction_id,
        samples=verdict.samples,
        tokens=verdict.tokens,
        size_bytes=verdict.size_bytes,
        rejected=verdict.rejected,
        proofs=verdict.proofs(),
        not_proven=verdict.not_proven(),
    )
    if verdict.rejected:
        record.write(run.rejected(arguments.batch))
        names = {sample.key: sample.sample_id for sample in samples}
        for key, reason in verdict.rejected.items():
            say(f"sample {names[key]} ({key}): {reason}")
        raise SampleError(
            f"{len(verdict.rejected)} of {counted(verdict.samples, 'sample')} of batch {arguments.batch}"
            " rejected; run the same command to extract them again"
        )
    record.write(arguments.output)
    say(
        f"batch {arguments.batch}: {counted(verdict.samples, 'sample')}, {counted(verdict.tokens, 'token')},"
        f" none rejected; not proven: {'; '.join(verdict.not_proven())}"
    )


def find_head(target: Path, trust_remote_code: bool) -> Head | Unknown:
    """The end of the target's model, or why it is not available: then no sample is rejected for it."""
    try:
        return read_head(target, trust_remote_code)
    except InputError as error:
        return Unknown(str(error))


if __name__ == "__main__":
    cli.run(main)
