"""What a pass books of its samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_data.errors import SampleError
from eagle3_data.passes.batch_records import FailureFacts, FailureRecord, FailureSummary
from eagle3_data.passes.ledger import PassFacts
from eagle3_data.passes.outcomes import Outcomes
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records.batch_index import SampleName
from eagle3_data.records.failures import describe_situation

REFUSED = describe_situation(SampleError, "too long")


class CountedNames(list[SampleName]):
    """Names of samples that count how often one is looked at."""

    looks = 0

    def __iter__(self):
        for name in super().__iter__():
            CountedNames.looks += 1
            yield name

    def __reversed__(self):
        for name in super().__reversed__():
            CountedNames.looks += 1
            yield name


def open_outcomes(directory: Path, number: str, names: list[SampleName]) -> Outcomes:
    facts = PassFacts(number=number, stripe=0, extraction_id="e")
    outcomes = Outcomes(PassPaths(directory), number, facts, FailureFacts(versions={}, retry=None))
    outcomes.open_batch("00000", "f", names, {name.key for name in names})
    return outcomes


def fail_all(outcomes: Outcomes, names: list[SampleName]) -> None:
    for name in names:
        outcomes.failed(name.key, 10, REFUSED, own=True)
    outcomes.finish(None)


def test_the_work_for_a_failed_sample_does_not_grow_with_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: names looked at, and directories listed."""
    samples, listings = 400, []
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda path, text: (listings.append(text), glob(path, text))[1])
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    names = [SampleName(f"s:{n}", f"{n:032x}") for n in range(samples)]
    outcomes = open_outcomes(tmp_path, "001", CountedNames(names))
    CountedNames.looks = 0
    fail_all(outcomes, names)
    assert CountedNames.looks <= 4 * samples
    assert len(listings) == 1
    assert outcomes.counts()["failed"] == 1
    summary = FailureSummary.read(PassPaths(tmp_path).failure_summary("00000", "001"))
    assert len(summary.failed) == samples and summary.causes == {"SampleError: too long": samples}


def test_attempts_count_over_passes_and_not_within_one(tmp_path: Path) -> None:
    names = [SampleName("s:0", "a" * 32), SampleName("s:1", "b" * 32)]
    paths = PassPaths(tmp_path)
    for attempt, number in enumerate(("001", "002", "002", "003")):
        fail_all(open_outcomes(tmp_path, number, names), names)
        record = FailureRecord.read(paths.failure("00000", number, "b" * 32))
        assert (record.sample_id, record.attempt) == ("s:1", [1, 2, 2, 3][attempt])
