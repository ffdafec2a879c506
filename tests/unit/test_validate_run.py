"""Validating the batches of a pass: what a job that was killed leaves, and what a later one finds out about
batches that were validated before."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from eagle3_data.hashing import sample_key
from eagle3_data.samples import Sample
from eagle3_data.validation.head import Unknown
from eagle3_data.validation.measuring import Begun, Measuring
from eagle3_data.validation.run import Subject, ValidationJob, validate
from eagle3_data.validation.verdict import BatchVerdict
from made_run import HIDDEN_SIZE, MadeRun

SHARED = list(range(3, 23))
"""Ids with which all samples begin."""


class SharingRun(MadeRun):
    """Three batches of two samples, whose states are those of a model."""

    wrong: frozenset[int] = frozenset()

    def ids(self, row: int) -> list[int]:
        return [*SHARED, *super().ids(row)]

    def key(self, row: int) -> str:
        return sample_key(self.ids(row))

    def states(self, row: int) -> torch.Tensor:
        """Of a `wrong` row, as of an engine that has captured the wrong layers."""
        right = super().states(row)
        return right[:, [1, 0, 2, 3]].contiguous() if row in self.wrong else right

    def extract(self, *rows: int) -> None:
        """Once more."""
        for row in rows:
            self.store.states_path(self.key(row)).unlink(missing_ok=True)
            self._store(row)

    def validate(self, batches: Sequence[str], number: str, measuring: Measuring | None = None) -> None:
        """One job; where it rejects nothing, the gates make the verdicts."""
        entries = self.index.batches
        prints = {name: self.identity.batch_fingerprint(one.fingerprint) for name, one in entries.items()}
        subjects = [
            Subject(name, prints[name], entries[name].row_group, frozenset()) for name in sorted(batches)
        ]
        others = {name: one for name, one in prints.items() if name not in batches}
        job = ValidationJob(self.run, number, f"{number}/0", subjects, others, None)
        assert set(validate(job, measuring or self.measuring()).values()) == {""}
        for name in batches:
            if not BatchVerdict.read(self.run.validation_record(name)).rejected:
                shutil.copy(self.run.validation_record(name), self.run.verdict(name))

    def measuring(self, kind: type[Measuring] = Measuring) -> Measuring:
        return kind(self.store, self.identity, HIDDEN_SIZE, Unknown("left out"))


@pytest.fixture
def made(tmp_path: Path) -> SharingRun:
    run = SharingRun(tmp_path, rows=6, rows_a_batch=2)
    for batch in run.index.batches:
        run.run.verdict(batch).unlink()
    return run


class Killed(Measuring):
    """Notes what it reads, and dies at the third sample it has not read yet, as of a kill -9."""

    read: list[str]
    dies = True

    def begin(self, samples: Sequence[Sample]) -> Begun:
        if self.dies and len(self.read) >= 4:
            raise KeyboardInterrupt
        self.read += [one.key for one in samples]
        return super().begin(samples)


def test_a_job_that_was_killed_goes_on_and_finds_the_same(
    made: SharingRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle3_data.validation.run.GREEDY_AT_ONCE", 1)
    path = made.store.states_path(made.key(0))
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink()
    path.write_bytes(content)
    measuring = made.measuring(Killed)
    assert isinstance(measuring, Killed)
    measuring.read = []
    batches = list(made.index.batches)
    with pytest.raises(KeyboardInterrupt):
        made.validate(batches, "001", measuring)
    assert not list(made.run.validation.glob("records/*")), "no verdict before all are measured"
    measuring.dies = False
    made.validate(batches, "001", measuring)
    assert measuring.read == [made.key(row) for row in range(6)], "each sample once"
    first, *others = [BatchVerdict.read(made.run.validation_record(batch)) for batch in batches]
    assert list(first.rejected) == [made.key(0)]
    assert first.rejected[made.key(0)].startswith("checksum")
    assert [one.rejected for one in others] == [{}, {}]
    made.validate(batches, "002", measuring)
    assert len(measuring.read) == 12, "another extraction is measured again"


def test_a_wrong_sample_of_a_batch_validated_before_is_rejected_once_others_tell(made: SharingRun) -> None:
    """The first batch has, at first, the only two samples that begin so, both wrong in two middle slots."""
    for row in range(2, 6):
        made.store.states_path(made.key(row)).unlink()
    made.wrong = frozenset({0, 1})
    made.extract(0, 1)
    made.validate(["00000"], "001")
    assert BatchVerdict.read(made.run.verdict("00000")).rejected == {}, "the two agree, and nothing tells"
    made.extract(2, 3, 4, 5)
    made.validate(["00001", "00002"], "002")
    ((key, reason),) = BatchVerdict.read(made.run.rejected("00000")).rejected.items()
    assert (key, reason.split(":")[0]) == (made.key(0), "shared-prefix")
    for batch in ("00001", "00002"):
        assert BatchVerdict.read(made.run.validation_record(batch)).rejected == {}
    made.wrong = frozenset({1})
    made.extract(0)
    made.validate(["00000"], "003")
    assert list(BatchVerdict.read(made.run.validation_record("00000")).rejected) == [made.key(1)]
