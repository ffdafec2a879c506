"""Validates what a pass has extracted: the batches that its ledger calls complete and that have no verdict
yet."""

from __future__ import annotations

import re
from pathlib import Path

from eagle3_data.config import Extraction, Target
from eagle3_data.errors import InputError
from eagle3_data.identity import identify_extraction
from eagle3_data.log import say
from eagle3_data.passes.batch_records import BatchRecord
from eagle3_data.passes.ledger import COMPLETE, Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.store import Store
from eagle3_data.store.magnitudes import compiled_find_largest, find_largest
from eagle3_data.target import TargetDescription, require_described
from eagle3_data.text import counted
from eagle3_data.validation.head import find_head
from eagle3_data.validation.measuring import Measuring
from eagle3_data.validation.run import Subject, ValidationJob, validate
from eagle3_data.validation.verdict import BatchVerdict, ValidationLedger

ROUGH_BYTES = 2
"""Of a number."""
COMPILED_FROM_BYTES = 16 << 30
"""Of states, for which numpy takes longer than it takes to compile."""


def validate_pass(
    run: RunPaths, extraction: Extraction, target: Target, extracted: str, output: Path, threads: int
) -> None:
    """Validate what the pass and stripe `extracted` has extracted, and write the ledger `output`. Raises
    InputError where its number is not in its path, or the target is not the described one."""
    number = re.fullmatch(r"\d{3,}", output.parents[1].name)
    if not number:
        raise InputError(f"{output} is not <number>/{extracted}.json: the third last part must be a number")
    description = TargetDescription.read(run.target)
    identity = identify_extraction(description, extraction)
    ledger = Ledger.read(run.extraction / "passes" / f"{extracted}.json")
    index = BatchIndex.read(run.batches).batches
    fingerprints = {batch: identity.batch_fingerprint(entry.fingerprint) for batch, entry in index.items()}
    subjects = [
        Subject(
            batch,
            outcome.fingerprint,
            index[batch].row_group,
            frozenset(sample.key for sample in outcome.left_out),
        )
        for batch, outcome in sorted(ledger.batches.items())
        if outcome.state == COMPLETE
        and outcome.fingerprint == fingerprints.get(batch)
        and _is_made_by(run, batch, extracted)
        and not _is_validated(run, batch, outcome.fingerprint, extracted)
    ]
    outcomes: dict[str, str] = {}
    if subjects:
        require_described(description, run.target)
        own = {subject.batch for subject in subjects}
        others = {batch: one for batch, one in fingerprints.items() if batch not in own}
        store = Store(extraction.store, identity.extraction_id)
        head = find_head(Path(description.path), target.trust_remote_code)
        row_bytes = len(identity.layers) * description.hidden_size * ROUGH_BYTES
        size = sum(index[subject.batch].tokens for subject in subjects) * row_bytes
        find = compiled_find_largest() if size > COMPILED_FROM_BYTES else find_largest
        measuring = Measuring(store, identity, description.hidden_size, head, threads, find)
        job = ValidationJob(run, number[0], extracted, subjects, others, ledger.replay)
        with store.in_use():
            outcomes = validate(job, measuring)
    ValidationLedger(number[0], extracted, identity.extraction_id, outcomes).write(output)
    say(f"{counted(len(outcomes), 'batch')} of pass {extracted} validated")


def _is_made_by(run: RunPaths, batch: str, extracted: str) -> bool:
    """A ledger also mentions batches that an earlier pass had completed."""
    record = BatchRecord.find(PassPaths(run.extraction).record(batch))
    return record is not None and f"{record.number}/{record.stripe}" == extracted


def _is_validated(run: RunPaths, batch: str, fingerprint: str, extracted: str) -> bool:
    """Whether a job that has ended validated the batch as this pass extracted it."""
    verdict = BatchVerdict.find(run.validation_record(batch))
    return (
        verdict is not None
        and (verdict.fingerprint, verdict.extracted) == (fingerprint, extracted)
        and run.validation_ledger(verdict.number, extracted).exists()
    )
