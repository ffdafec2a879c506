"""What the difference between stored and replayed states looks like, what that is likely to mean, and what to
try."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3_data.store.states import States
from eagle3_data.validation.likeness import Tolerance, relative_errors

LOOKED_AT = 64
"""Wrong rows, evenly spaced, by which it is found out what they are instead."""
WHOLE = 0.9
"""Part of a sample's rows from which on the sample is wrong as a whole."""
MOST = 0.5
"""Of the rows after the first wrong one: what comes before is right where two requests begin alike."""
SEARCHED_ROWS = 8192
"""How far around a wrong row the sample is searched for the token whose state it is."""

_ARGUMENTS = "extraction.engine_arguments"
_SAME_ID = "what is stored and right stays valid under other values of these arguments"
_OTHER = "another vLLM version, or extraction.engine: eagle3_data.engines.transformers:TransformersEngine"
MIXED = (
    "states of another request: requests were mixed up in the batch",
    f"{_ARGUMENTS}: {{max_num_seqs: 1}}, one sample at a time ({_SAME_ID}); or {_OTHER}",
)
CHUNK = (
    "a chunk of the sample was lost where one step of the engine ended and another began",
    f"{_ARGUMENTS}: max_num_batched_tokens above tokenization.max_length, or enable_chunked_prefill: false"
    f" ({_SAME_ID}); or {_OTHER}",
)
PREFIX = (
    "the beginning came from the prefix cache, or from another request",
    f"{_ARGUMENTS}: {{enable_prefix_caching: false}} ({_SAME_ID}); or {_OTHER}",
)
LAYER = ("the wrong layer was captured for some requests", _OTHER)
NUMBERS = (
    "the engine's numbers depend on what else is in the batch by more than rounding explains, or its memory"
    " is at fault",
    f"{_ARGUMENTS}: {{max_num_seqs: 1}} ({_SAME_ID}), the variable VLLM_BATCH_INVARIANT=1, other devices; or"
    f" {_OTHER}",
)


@dataclass(frozen=True)
class Difference:
    """Where stored and replayed states differ, what is likely at fault, and what to try."""

    place: str
    likely: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.place}; likely: {self.likely}"


def describe_difference(
    stored: States,
    replayed: States,
    errors: np.ndarray,
    wrong: np.ndarray,
    layers: Sequence[int],
    tolerance: Tolerance,
) -> Difference:
    """Of a sample whose rows `wrong` [T, L] differ by `errors` [T, L]; at least one is wrong."""
    slots = [int(slot) for slot in np.flatnonzero(wrong.any(axis=0))]
    places, layer_fault = [], False
    for slot in slots:
        rows = np.flatnonzero(wrong[:, slot])
        text = (
            f"slot {slot} (layer {layers[slot]}): {len(rows)} of {len(wrong)} tokens, {rows[0]} to"
            f" {rows[-1]}, differ by {float(np.median(errors[rows, slot])):.0%}"
        )
        other = _other_slot(stored, replayed, slot, rows, tolerance)
        if other is not None:
            layer_fault = True
            text += f"; they are what slot {other} (layer {layers[other]}) should hold"
        places.append(text)
    place = "; ".join(places)
    if layer_fault:
        return Difference(place, *LAYER)
    if float(np.median(errors[wrong])) < tolerance.row:
        return Difference(place, *NUMBERS)
    rows = np.flatnonzero(wrong.any(axis=1))
    first, last = int(rows[0]), int(rows[-1])
    source = _other_token(stored, replayed, first, slots[0], tolerance)
    if source is not None:
        place += f"; token {first} has the state of token {source}"
    if len(slots) < wrong.shape[1]:
        return Difference(place, *LAYER)
    if len(rows) > WHOLE * len(wrong):
        return Difference(place, *MIXED)
    if first == 0 and source is None and last + 1 < len(wrong):
        return Difference(place, *PREFIX)
    to_the_end = last + 1 > WHOLE * len(wrong) and len(rows) > MOST * (len(wrong) - first)
    return Difference(place, *(MIXED if to_the_end else CHUNK))


def _other_slot(
    stored: States, replayed: States, slot: int, rows: np.ndarray, tolerance: Tolerance
) -> int | None:
    """The slot whose replayed states the wrong rows of `slot` are."""
    some = rows[:: max(1, len(rows) // LOOKED_AT)]
    for other in range(stored.bits.shape[1]):
        if other == slot:
            continue
        errors = [
            relative_errors(
                stored.values(slice(row, row + 1), slot), replayed.values(slice(row, row + 1), other)
            )
            for row in some.tolist()
        ]
        if np.median(errors) <= tolerance.slot:
            return other
    return None


def _other_token(stored: States, replayed: States, row: int, slot: int, tolerance: Tolerance) -> int | None:
    """The token near `row` whose replayed state the stored row is."""
    start = max(0, row - SEARCHED_ROWS)
    near = replayed.values(slice(start, row + SEARCHED_ROWS), slot)
    wanted = stored.values(slice(row, row + 1), slot)
    errors = relative_errors(wanted, near)
    best = int(errors.argmin())
    return start + best if errors[best] <= tolerance.slot else None
