#!/usr/bin/env python3
"""Find the batches whose samples are all in the store already, from any run, and write their records. Needs
no engine."""

import argparse
import os
from pathlib import Path

from eagle3_data import cli
from eagle3_data.config import Extraction, load_section
from eagle3_data.identity import identify_extraction
from eagle3_data.log import say
from eagle3_data.passes.batch_records import FailureFacts
from eagle3_data.passes.ledger import Ledger, PassFacts
from eagle3_data.passes.outcomes import Outcomes, is_recorded
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.target import TargetDescription
from eagle3_data.text import counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config file with section extraction")
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--pass-number", required=True, help="three digits")
    parser.add_argument("--ledger", required=True, type=Path, help="ledger to write (JSON)")
    arguments = parser.parse_args()
    extraction = load_section(arguments.config, "extraction", Extraction)
    run = RunPaths(arguments.results)
    identity = identify_extraction(TargetDescription.read(run.target), extraction)
    store = Store(extraction.store, identity.extraction_id)
    samples = SampleFile(run.samples)
    command = os.environ.get("EAGLE3_DATA_COMMAND")
    facts = PassFacts(
        number=arguments.pass_number,
        stripe="stored",
        extraction_id=identity.extraction_id,
        command=command,
    )
    paths = PassPaths(run.extraction)
    index = BatchIndex.read(run.batches)
    outcomes = Outcomes(paths, arguments.pass_number, facts, FailureFacts(versions={}, retry=command))
    store.check_readable()
    store.clean_incoming()  # there may be no further pass to do it
    with store.in_use():  # until the records say what must not be deleted
        keys = store.keys()
        for batch, entry in sorted(index.batches.items()):
            names = samples.names(entry.row_group)
            fingerprint = identity.batch_fingerprint(entry.fingerprint)
            if any(name.key not in keys for name in names):
                continue
            samples.check_keys(entry.row_group)
            if is_recorded(paths, batch, fingerprint, arguments.pass_number):
                outcomes.known_complete(batch, fingerprint, names)
            else:
                outcomes.open_batch(batch, fingerprint, names, set())
        outcomes.finish(None)
        Ledger(**vars(facts), batches=outcomes.batches()).write(arguments.ledger)
    say(f"{counted(len(outcomes.batches()), 'batch')} found complete in the store")


if __name__ == "__main__":
    cli.run(main)
