"""The record of a batch's validation. Standard library only: the status reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from eagle3_data.records import Record


@dataclass(frozen=True)
class AppliedProof(Record):
    """A proof, the number of samples it was applied to, and what it covers of each. `unknown` says why it
    could not be applied."""

    proof: str
    samples: int
    covers: str
    unknown: str | None = None


@dataclass(frozen=True)
class BatchVerdict(Record):
    """`validation/<batch>.json` where every sample passed, else `validation/rejected/<batch>.json`.
    `rejected` maps a sample's key to the reason."""

    on_damage: ClassVar[str] = "delete it and run the same command again, which validates the batch again"

    batch: str
    fingerprint: str
    extraction_id: str
    samples: int
    tokens: int
    size_bytes: int
    rejected: dict[str, str] = field(default_factory=dict)
    proofs: list[AppliedProof] = field(default_factory=list)
    not_proven: list[str] = field(default_factory=list)
