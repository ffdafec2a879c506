"""What became of the samples and batches of a pass, and the files that say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.records import write_json
from eagle3_data.samples import SampleName

COMPLETE, FAILED, NOT_REACHED = "complete", "failed", "not_reached"


@dataclass
class BatchOutcome:
    """A batch while the pass runs. `waiting` are the keys that still have to come into the store."""

    fingerprint: str
    samples: Sequence[SampleName]
    waiting: set[str]
    failed: dict[str, str] = field(default_factory=dict)
    """Key of a failed sample → path of its failure record."""

    @property
    def state(self) -> str:
        if self.failed:
            return FAILED
        return NOT_REACHED if self.waiting else COMPLETE

    def as_record(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "fingerprint": self.fingerprint,
            "samples": len(self.samples),
            "failed": [{"sample_id": s.sample_id, "record": self.failed[s.key]} for s in self.samples if s.key in self.failed],
            "not_reached": len(self.waiting),
        }


class Outcomes:
    """Books the samples of one stripe of a pass. A batch's record is written as soon as its last sample is in the store."""

    def __init__(self, paths: ExtractionPaths, number: str, stripe: int, facts: dict[str, Any]) -> None:
        self._paths, self._number, self._stripe, self._facts = paths, number, stripe, facts
        self._batches: dict[str, BatchOutcome] = {}
        self._batches_of: dict[str, list[str]] = {}
        self.tokens = self.size_bytes = self.extracted = 0

    def known_complete(self, batch: str, fingerprint: str, samples: Sequence[SampleName]) -> None:
        """A batch an earlier pass finished: listed in this ledger, its record left alone."""
        self._batches[batch] = BatchOutcome(fingerprint, samples, set())

    def open_batch(self, batch: str, fingerprint: str, samples: Sequence[SampleName], missing: set[str]) -> None:
        outcome = self._batches[batch] = BatchOutcome(fingerprint, samples, set(missing))
        for key in missing:
            self._batches_of.setdefault(key, []).append(batch)
        if not missing:
            self._write_record(batch, outcome)

    def open_batches(self) -> list[str]:
        """Batches with samples that are not in the store yet, in order."""
        return [batch for batch, outcome in self._batches.items() if outcome.waiting]

    def is_waiting(self, key: str) -> bool:
        """Whether `key` is neither committed nor failed."""
        return key in self._batches_of

    def committed(self, key: str, tokens: int, size_bytes: int) -> None:
        self.extracted += 1
        self.tokens += tokens
        self.size_bytes += size_bytes
        for batch in self._batches_of.pop(key):
            outcome = self._batches[batch]
            outcome.waiting.discard(key)
            if outcome.state == COMPLETE:
                self._write_record(batch, outcome)

    def failed(self, key: str, tokens: int, failure: dict[str, Any]) -> None:
        """Write a failure record for each batch the sample is in."""
        for batch in self._batches_of.pop(key):
            outcome = self._batches[batch]
            outcome.waiting.discard(key)
            path = self._paths.failure(batch, self._number, key)
            sample_id = next(sample.sample_id for sample in outcome.samples if sample.key == key)
            write_json(path, {**self._facts, "batch": batch, "sample_id": sample_id, "key": key, "tokens": tokens, "failure": failure})
            outcome.failed[key] = str(path)

    def counts(self) -> dict[str, int]:
        states = [outcome.state for outcome in self._batches.values()]
        return {state: states.count(state) for state in (COMPLETE, FAILED, NOT_REACHED)}

    def batches(self) -> dict[str, Any]:
        return {batch: outcome.as_record() for batch, outcome in self._batches.items()}

    def _write_record(self, batch: str, outcome: BatchOutcome) -> None:
        samples = [{"sample_id": sample.sample_id, "key": sample.key} for sample in outcome.samples]
        write_json(self._paths.record(batch), {**self._facts, "batch": batch, "fingerprint": outcome.fingerprint, "samples": samples})


def rejected_path(results: Path, batch: str) -> Path:
    """Where validation leaves the keys it rejects, for the next pass to quarantine."""
    return results / "validation" / "rejected" / f"{batch}.json"
