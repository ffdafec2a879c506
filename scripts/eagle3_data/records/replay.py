"""What the replay at the end of a pass found. Standard library only: ledgers hold it, validation reads it.

A replay sends samples that a pass has just stored through the loaded engine again, each alone, with every
cache left aside. Equal states show that nothing depended on what else was in the batch, on the border of a
step, or on a cached block. It does not show that the layers are those that were asked for: the same engine
repeats such a fault.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle3_data.records.record import Record


@dataclass(frozen=True)
class SlotErrors(Record):
    """Of one slot: relative errors |stored - replayed| / |replayed| of its rows in all replayed samples."""

    layer: int
    median: float
    p99: float
    max: float


@dataclass(frozen=True, kw_only=True)
class Replay(Record):
    """`samples` are the keys that were replayed, with `rows` tokens in all, `slots` what was measured; both
    are of good samples and bad ones. `failed` maps the key of a sample that came out differently to how.
    `longest_step` counts the tokens the engine computes in one step at most, where it tells; `crossing` the
    replayed samples that are longer. `unfinished` says why fewer samples were replayed than asked for, or
    none; empty where nothing was left out."""

    samples: list[str] = field(default_factory=list)
    rows: int = 0
    slots: list[SlotErrors] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    longest_step: int | None = None
    crossing: int = 0
    unfinished: str = ""
    elapsed_s: float = 0.0
