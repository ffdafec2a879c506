"""The record of the reference: stored states held against transformers' own, from the target's real weights.
Standard library only: the status reads it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from eagle3_data.records import Record
from eagle3_data.text import counted
from eagle3_data.validation.coverage import REFERENCE
from eagle3_data.validation.reference_cost import LONGEST_ROWS
from eagle3_data.validation.verdict import AppliedProof

COVERS = f"every slot, and every token up to {LONGEST_ROWS:,} of a sample"
DIRECTORY = "reference"
"""In a store: the records of what passed."""


@dataclass(frozen=True)
class SlotFigures(Record):
    """Of one slot, over all compared rows: relative errors |stored - computed| / |computed| against the
    states after its own layer (median and 99th percentile), and medians against the layer before and after
    (None: there is none; after the last layer, the states after the final norm). `rounding` is the median
    error that rounding alone would make."""

    layer: int
    median: float
    p99: float
    rounding: float
    before: float | None
    after: float | None

    @property
    def neighbours(self) -> list[float]:
        return [error for error in (self.before, self.after) if error is not None]

    @property
    def contrast(self) -> float:
        """How many times further the nearer neighbour is than the own layer."""
        return min(min(self.neighbours, default=0.0) / max(self.median, 1e-9), 1e6)


@dataclass(frozen=True, kw_only=True)
class EngineReference(Record):
    """Of the samples that engines of one kind stored: `versions` are the engine's packages, `samples` maps
    the keys that were compared to the number of rows, `faults` says what is wrong. `undecided` says what
    could not be told, or why nothing was compared; empty where everything was."""

    extraction_id: str
    versions: dict[str, str] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    slots: list[SlotFigures] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    undecided: str = ""
    reference_versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    elapsed_s: float = 0.0
    forecast_s: float = 0.0

    @property
    def passed(self) -> bool:
        return bool(self.samples) and not self.faults and not self.undecided

    def describe(self) -> list[str]:
        engine = ", ".join(f"{name} {version}" for name, version in self.versions.items()) or "engine unknown"
        rows = sum(self.samples.values())
        lines = [
            f"slot {slot} (layer {one.layer}): median error {one.median:.2%}, 99th percentile {one.p99:.2%};"
            f" rounding explains {one.rounding:.2%}; neighbouring layers"
            f" {' and '.join(f'{near:.0%}' for near in one.neighbours)}"
            for slot, one in enumerate(self.slots)
        ]
        if self.samples:
            lines.insert(0, f"{counted(len(self.samples), 'sample')}, {counted(rows, 'row')}, from {engine}")
        unclear = [f"not proven: {self.undecided}"] if self.undecided else []
        return [*lines, *(f"wrong: {fault}" for fault in self.faults), *unclear]

    def proof(self) -> AppliedProof:
        figures = {}
        if self.slots:
            figures = {
                "largest_median_error": max(slot.median for slot in self.slots),
                "largest_p99_error": max(slot.p99 for slot in self.slots),
                "smallest_contrast": min(slot.contrast for slot in self.slots),
            }
        return AppliedProof(
            REFERENCE,
            len(self.samples),
            COVERS,
            self.undecided or None,
            rows=sum(self.samples.values()),
            figures=figures,
        )


@dataclass(frozen=True, kw_only=True)
class Reference(Record):
    """`reference.json` of a run if no state was found wrong, else `reference.failed.json`: an entry for each
    kind of engine that stored samples of the run."""

    on_damage: ClassVar[str] = "delete it and run the same command again, which compares again"

    extraction_id: str
    status: Literal["passed", "unknown", "off", "failed"]
    engines: list[EngineReference]

    @classmethod
    def without(cls, extraction_id: str, status: Literal["unknown", "off"], reason: str) -> Reference:
        """Nothing was compared."""
        return cls(
            extraction_id=extraction_id,
            status=status,
            engines=[EngineReference(extraction_id=extraction_id, undecided=reason)],
        )

    def proofs(self) -> list[AppliedProof]:
        return [engine.proof() for engine in self.engines]

    def describe(self) -> list[str]:
        """Lines for a log."""
        return [f"reference: {line}" for engine in self.engines for line in engine.describe()]
