"""The records of single batches and failures, below `results/<run>/extraction`. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_data.passes.ledger import FailedSample, PassFacts, State
from eagle3_data.records import Record
from eagle3_data.records.batch_index import SampleName
from eagle3_data.records.failures import Failure


@dataclass(frozen=True, kw_only=True)
class BatchRecord(PassFacts):
    """A complete batch: its samples in the store, those that are knowingly left out, and which pass finished
    it."""

    batch: str
    fingerprint: str
    samples: list[SampleName]
    left_out: list[FailedSample]


@dataclass(frozen=True, kw_only=True)
class FailureFacts(Record):
    """What every failure record says of its pass: versions of packages, and the command that retries."""

    versions: dict[str, str | None]
    retry: str | None


@dataclass(frozen=True, kw_only=True)
class FailureRecord(PassFacts, FailureFacts):
    """One failed sample in one pass; `attempt` counts from 1 over all passes."""

    batch: str
    sample_id: str
    key: str
    tokens: int
    attempt: int
    failure: Failure


@dataclass(frozen=True, kw_only=True)
class FailureSummary(PassFacts, FailureFacts):
    """What one pass failed to do of a batch; `causes` counts samples."""

    batch: str
    state: State
    fingerprint: str
    samples: int
    left_out: list[FailedSample]
    failed: list[FailedSample]
    not_reached: int
    causes: dict[str, int]
