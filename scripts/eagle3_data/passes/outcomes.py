"""The outcomes of a pass's samples and batches, and the files that record them."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from eagle3_data.passes.batch_records import BatchRecord, FailureFacts, FailureRecord, FailureSummary
from eagle3_data.passes.ledger import (
    COMPLETE,
    FAILED,
    NOT_REACHED,
    BatchOutcome,
    FailedSample,
    Ledger,
    PassFacts,
    State,
)
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records import Record
from eagle3_data.records.batch_index import SampleName
from eagle3_data.records.failures import Failure

OWN_REMEDY = (
    "if the sample itself is at fault, remove it from the data, or allow failed samples with"
    " extraction.max_failed_fraction"
)
OTHER_REMEDY = "the sample is not at fault: fix the cause and run the same command again"
"""Used unless the engine's log suggests a better one."""


@dataclass
class OpenBatch:
    """A batch while the pass runs. `waiting` are the keys that still have to come into the store."""

    fingerprint: str
    samples: Sequence[SampleName]
    waiting: set[str]
    failed: dict[str, str] = field(default_factory=dict)
    """Key of a failed sample → path of its failure record."""
    causes: Counter[str] = field(default_factory=Counter)
    all_of_their_own: bool = True
    """Whether nothing but the failed samples themselves is to blame."""
    left_out: bool = False
    """Whether the batch may be complete without the failed samples (extraction.max_failed_fraction)."""

    @cached_property
    def sample_ids(self) -> dict[str, str]:
        """By key."""
        return {name.key: name.sample_id for name in reversed(self.samples)}

    @property
    def state(self) -> State:
        if self.waiting and not self.failed:
            return NOT_REACHED
        return FAILED if self.waiting or (self.failed and not self.left_out) else COMPLETE

    def failures(self) -> list[FailedSample]:
        return [
            FailedSample(name.sample_id, name.key, self.failed[name.key])
            for name in self.samples
            if name.key in self.failed
        ]

    def outcome(self) -> BatchOutcome:
        failures = self.failures()
        return BatchOutcome(
            state=self.state,
            fingerprint=self.fingerprint,
            samples=len(self.samples) - (len(failures) if self.left_out else 0),
            left_out=failures if self.left_out else [],
            failed=[] if self.left_out else failures,
            not_reached=len(self.waiting),
        )


class Outcomes:
    """Books the samples of one stripe of a pass. A batch's record is written as soon as its last sample is in
    the store.

    `facts` are in every record; `failure_facts` in every failure record (versions, the command that retries).
    A record that cannot be written (a full disk) is kept and written by `finish`.
    """

    def __init__(
        self,
        paths: PassPaths,
        number: str,
        facts: PassFacts,
        failure_facts: FailureFacts,
        max_failed_fraction: float = 0.0,
    ) -> None:
        self._paths, self._number, self._facts, self._failure_facts = paths, number, facts, failure_facts
        self._max_failed_fraction = max_failed_fraction
        self._batches: dict[str, OpenBatch] = {}
        self._batches_of: dict[str, list[str]] = {}
        self._stored: dict[str, tuple[int, list[str]]] = {}
        """By key, tokens and batches of what this pass put into the store."""
        self._earlier: dict[str, Counter[str]] = {}
        self._unwritten: dict[Path, Record] = {}
        self.tokens = self.size_bytes = self.extracted = self.failures = self.found_in_store = 0

    def known_complete(self, batch: str, fingerprint: str, samples: Sequence[SampleName]) -> None:
        """A batch that was complete before: listed in this ledger, its record left alone."""
        self._batches[batch] = OpenBatch(fingerprint, samples, set())

    def open_batch(
        self, batch: str, fingerprint: str, samples: Sequence[SampleName], missing: set[str]
    ) -> None:
        outcome = self._batches[batch] = OpenBatch(fingerprint, samples, set(missing))
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
        """This pass put a sample into the store."""
        self.extracted += 1
        self.tokens += tokens
        self.size_bytes += size_bytes
        self._stored[key] = (tokens, self._arrived(key))

    def found(self, key: str) -> None:
        """Another run put a sample into the store meanwhile."""
        self.found_in_store += 1
        self._arrived(key)

    def _arrived(self, key: str) -> list[str]:
        batches = self._batches_of.pop(key)
        for batch in batches:
            outcome = self._batches[batch]
            outcome.waiting.discard(key)
            if outcome.state == COMPLETE:
                self._write_record(batch, outcome)
        return batches

    @property
    def stored_lengths(self) -> dict[str, int]:
        """Tokens of each sample that this pass put into the store, by key."""
        return {key: tokens for key, (tokens, _) in self._stored.items()}

    def stored_by_batch(self) -> dict[str, list[str]]:
        """The keys of the samples that this pass put into the store, by batch; a key may be in several."""
        keys: dict[str, list[str]] = {}
        for key, (_, batches) in self._stored.items():
            for batch in batches:
                keys.setdefault(batch, []).append(key)
        return keys

    def take_back(self) -> None:
        """What this pass put into the store is there no more: the batches it is in are not complete."""
        for key, (_, batches) in self._stored.items():
            self._batches_of[key] = batches
            for batch in batches:
                self._batches[batch].waiting.add(key)
        for batch in self.stored_by_batch():
            path = self._paths.record(batch)
            self._unwritten.pop(path, None)
            path.unlink(missing_ok=True)
        self._stored.clear()

    def failed(self, key: str, tokens: int, failure: Failure, own: bool) -> None:
        """Write a failure record for each batch the sample is in. `own`: the sample itself is to blame, not a
        disk or the engine."""
        self.failures += 1
        failure = replace(failure, remedy=failure.remedy or (OWN_REMEDY if own else OTHER_REMEDY))
        for batch in self._batches_of.pop(key):
            outcome = self._batches[batch]
            outcome.waiting.discard(key)
            outcome.all_of_their_own &= own
            outcome.causes[failure.summary] += 1
            path = self._paths.failure(batch, self._number, key)
            sample_id = outcome.sample_ids[key]
            attempt = 1 + self._earlier_failures(batch)[key]
            record = FailureRecord(
                **vars(self._facts),
                **vars(self._failure_facts),
                batch=batch,
                sample_id=sample_id,
                key=key,
                tokens=tokens,
                attempt=attempt,
                failure=failure,
            )
            self._write(path, record)
            outcome.failed[key] = str(path)

    def _earlier_failures(self, batch: str) -> Counter[str]:
        """How often each sample failed in other passes, by key; looked up at a batch's first failure."""
        if batch not in self._earlier:
            self._earlier[batch] = self._paths.failure_counts(batch, self._number)
        return self._earlier[batch]

    def finish(self, shared: Failure | None) -> None:
        """No more samples will come. `shared` is what ended the pass early, if something did: then the next
        one tries failed samples again."""
        for batch, outcome in self._batches.items():
            may_be_left_out = outcome.all_of_their_own and not outcome.waiting and not shared
            if (
                outcome.failed
                and may_be_left_out
                and len(outcome.failed) <= self._max_failed_fraction * len(outcome.samples)
            ):
                outcome.left_out = True
                self._write_record(batch, outcome)
            elif outcome.failed:
                causes = dict(outcome.causes)
                if outcome.waiting and shared:
                    causes[shared.summary] = len(outcome.waiting)
                summary = FailureSummary(
                    **vars(self._facts),
                    **vars(self._failure_facts),
                    **vars(outcome.outcome()),
                    batch=batch,
                    causes=causes,
                )
                self._write(self._paths.failure_summary(batch, self._number), summary)
        unwritten, self._unwritten = self._unwritten, {}
        for path, record in unwritten.items():
            record.write(path)

    def counts(self) -> dict[str, int]:
        states = [outcome.state for outcome in self._batches.values()]
        return {state: states.count(state) for state in (COMPLETE, FAILED, NOT_REACHED)}

    def missing(self) -> int:
        """Samples that are neither in the store nor failed."""
        return len(self._batches_of)

    def batches(self) -> dict[str, BatchOutcome]:
        return {batch: outcome.outcome() for batch, outcome in self._batches.items()}

    def _write_record(self, batch: str, outcome: OpenBatch) -> None:
        record = BatchRecord(
            **vars(self._facts),
            batch=batch,
            fingerprint=outcome.fingerprint,
            samples=[name for name in outcome.samples if name.key not in outcome.failed],
            left_out=outcome.failures(),
        )
        self._write(self._paths.record(batch), record)

    def _write(self, path: Path, record: Record) -> None:
        self._unwritten[path] = record
        with contextlib.suppress(OSError):
            record.write(path)
            del self._unwritten[path]


def is_recorded(paths: PassPaths, batch: str, fingerprint: str, number: str) -> bool:
    """Whether this very batch was finished by a pass whose ledger is there, or will be: pass `number` runs at
    this moment."""
    record = BatchRecord.find(paths.record(batch))
    if not record or record.fingerprint != fingerprint or record.left_out:
        return False
    return record.number == number or Ledger.find(paths.ledger(record.number, record.stripe)) is not None
