"""The records of validation: which proofs were applied to what. Standard library only: the status reads
them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from eagle3_data.records import MisfitError, Record


@dataclass(frozen=True)
class AppliedProof(Record):
    """A proof, the number of samples and of their rows (tokens) that it was applied to, and what it covers of
    each. `unknown` says why it could not be applied. The first word of a figure's name says how those of
    several batches become one: `largest_`, `smallest_` or `number_` (the sum), `mean_` and `median_`, each
    weighted with samples."""

    proof: str
    samples: int
    covers: str
    unknown: str | None = None
    rows: int = 0
    figures: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.figures:
            if name.partition("_")[0] not in ("largest", "smallest", "number", "mean", "median"):
                raise MisfitError(f"has a figure {name!r}, whose first word is not known", "figures")


@dataclass(frozen=True)
class BatchVerdict(Record):
    """`validation/<batch>.json` where every sample passed, else `validation/rejected/<batch>.json`.
    `rejected` maps a sample's key to the reason, which begins with the name of the proof. `extracted` is the
    ledger of the pass that extracted the batch (its number and stripe), `number` that of the job that
    validated it; what changed in the store after `validated_at_ns`, by the store's clock, was not seen."""

    on_damage: ClassVar[str] = "delete it and run the same command again, which makes it again"

    batch: str
    fingerprint: str
    extraction_id: str
    samples: int
    tokens: int
    size_bytes: int
    rejected: dict[str, str] = field(default_factory=dict)
    proofs: list[AppliedProof] = field(default_factory=list)
    not_proven: list[str] = field(default_factory=list)
    extracted: str = ""
    number: str = ""
    validated_at_ns: int = 0


@dataclass(frozen=True)
class ValidationLedger(Record):
    """`validation/passes/<number>/<extracted>.json`: what became of each batch that the pass `extracted` had
    completed. Empty where there is a verdict, which may reject samples; else why there is none."""

    number: str
    extracted: str
    extraction_id: str
    batches: dict[str, str]


def merge_proofs(proofs: Iterable[AppliedProof]) -> list[AppliedProof]:
    """One entry for each proof, coverage and reason why it is unknown, in the order of their first mention:
    samples and rows are added up, figures merged as their names say."""
    alike: dict[tuple[str, str, str | None], list[AppliedProof]] = {}
    for proof in proofs:
        alike.setdefault((proof.proof, proof.covers, proof.unknown), []).append(proof)
    return [
        replace(
            group[0],
            samples=sum(proof.samples for proof in group),
            rows=sum(proof.rows for proof in group),
            figures={
                name: _merged(name, group) for name in sorted({n for one in group for n in one.figures})
            },
        )
        for group in alike.values()
    ]


def _merged(name: str, proofs: list[AppliedProof]) -> float:
    parts = sorted((proof.figures[name], proof.samples) for proof in proofs if name in proof.figures)
    values, weights = [value for value, _ in parts], [weight for _, weight in parts]
    match name.partition("_")[0]:
        case "largest":
            return values[-1]
        case "smallest":
            return values[0]
        case "number":
            return sum(values)
        case "mean":
            weighted = sum(value * weight for value, weight in parts)
            return weighted / sum(weights) if sum(weights) else values[0]
    met = 0
    for value, weight in parts:
        met += weight
        if 2 * met >= sum(weights):
            return value
    return values[-1]
