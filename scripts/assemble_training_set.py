#!/usr/bin/env python3
"""Assemble the training set in speculators' format from validated batches, and open it with speculators' own
loader."""

import argparse
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np

from eagle3_data import cli
from eagle3_data.assembly.proof import reject_changed, require_proof
from eagle3_data.assembly.provenance import Provenance, engines_used
from eagle3_data.assembly.speculators import (
    Counts,
    accepted_findings,
    check_with_speculators,
    link_rows,
    write_rows,
    write_token_frequencies,
)
from eagle3_data.assembly.verify import SEAL, seal_set
from eagle3_data.config import Extraction, Tokenization, TrainingSet, load_section
from eagle3_data.identity import identify_extraction
from eagle3_data.log import say
from eagle3_data.passes.ledger import Gate
from eagle3_data.passes.proofs import proofs_of_run
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.system.modes import follow_umask
from eagle3_data.target import TargetDescription
from eagle3_data.text import counted
from eagle3_data.validation.verdict import BatchVerdict
from eagle3_data.version import workflow_version
from eagle3_data.vocabulary import draft_vocabulary_map


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config",
        required=True,
        help="config file with sections extraction, tokenization, training_set",
    )
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--output", required=True, type=Path, help="directory to make")
    arguments = parser.parse_args()
    extraction = load_section(arguments.config, "extraction", Extraction)
    draft_vocab_size = load_section(arguments.config, "training_set", TrainingSet).draft_vocab_size
    run = RunPaths(arguments.results)
    target = TargetDescription.read(run.target)
    identity = identify_extraction(target, extraction)
    tokens = BatchIndex.read(run.batches)
    require_proof(run, tokens, identity)
    samples = run.samples
    left_out = {batch: Gate.read(run.gate(batch)).left_out for batch in sorted(tokens.batches)}
    without = {sample.key for batch in left_out.values() for sample in batch}
    store = Store(extraction.store, identity.extraction_id)
    reject_changed(run, tokens, store, without)
    counts = Counts(
        tokens.tokens,
        tokens.trained_tokens,
        np.load(run.frequencies),
    )
    for batch in (batch for batch, missing in left_out.items() if missing):
        counts.take_out(
            sample
            for sample in SampleFile(samples).samples(tokens.batches[batch].row_group)
            if sample.key in without
        )

    for unfinished in arguments.output.parent.glob(
        f".{arguments.output.name}.*.part"
    ):  # of a call that was killed; one that still runs ends with an error
        shutil.rmtree(unfinished, ignore_errors=True)
    building = Path(
        tempfile.mkdtemp(dir=arguments.output.parent, prefix=f".{arguments.output.name}.", suffix=".part")
    )
    follow_umask(building)
    rows = write_rows(samples, building, without)
    ways = link_rows(samples, store, building, rows, without)
    write_token_frequencies(counts.frequencies, building)
    if draft_vocab_size:
        d2t, t2d = draft_vocabulary_map(counts.frequencies, draft_vocab_size, tokens.tokenizer["special_ids"])
        np.save(building / f"d2t-{draft_vocab_size}.npy", d2t)
        np.save(building / f"t2d-{draft_vocab_size}.npy", t2d)
    verdicts = [BatchVerdict.read(run.verdict(batch)) for batch in sorted(tokens.batches)]
    proofs = proofs_of_run(run, identity.extraction_id, verdicts)
    provenance = Provenance(
        workflow=workflow_version(),
        extraction_id=identity.extraction_id,
        extraction=asdict(identity),
        requested_layers=None if extraction.layers is None else list(extraction.layers),
        layer_convention=extraction.layer_convention,
        target=target,
        engines=engines_used(arguments.results, identity.extraction_id),
        rows=rows,
        tokens=counts.tokens,
        trained_tokens=counts.trained_tokens,
        dropped=tokens.dropped,
        generation=tokens.generation,
        left_out=[sample for batch in left_out.values() for sample in batch],
        accepted_findings=accepted_findings(arguments.results),
        draft_vocab_size=draft_vocab_size,
        states=ways,
        seal=SEAL,
        proofs=proofs.applied,
        not_proven=proofs.not_proven,
    )
    provenance.write(building / "provenance.json")
    check_with_speculators(
        building, rows, load_section(arguments.config, "tokenization", Tokenization).max_length
    )
    fingerprints = {
        batch: identity.batch_fingerprint(entry.fingerprint) for batch, entry in tokens.batches.items()
    }
    seal_set(building, samples, store, without, fingerprints)
    shutil.rmtree(arguments.output, ignore_errors=True)
    building.rename(arguments.output)
    say(
        f"{arguments.output}: {counted(rows, 'row')}, {counted(counts.tokens, 'token')}, states by"
        f" {', '.join(f'{way} ({n})' for way, n in ways.items())}"
    )


if __name__ == "__main__":
    cli.run(main)
