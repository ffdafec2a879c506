"""Judges what stored states are, by their distance to those of transformers at every layer.

A slot passes if its states are as near to those after its own layer as rounding allows, and the neighbouring
layers are unmistakably further away. What is wrong is named: the layer that the slot holds instead, two slots
that are swapped, rows that are shifted, the rows that are wrong, numbers that rounding does not explain.
Where rounding moves states as far as a layer does, nothing can be told, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eagle3_data.validation.layer_errors import SampleErrors
from eagle3_data.validation.likeness import TOLERANCES
from eagle3_data.validation.reference_verdict import SlotFigures

TIMES_ROUNDING = 3.0
"""What is more is not rounding. Measured of vLLM in bfloat16: 0.7 to 0.8 times, in every layer, with and
without experts."""
SMALLEST_BOUND = {"float32": 1e-3, "bfloat16": 0.01, "fp8": 0.05}
"""The states themselves are stored in this dtype."""
LEAST_CONTRAST = 2.0
ROW_TIMES_ROUNDING = 5.0
"""Of the most that rounding moves any row of the sample."""
RUN = 8
"""Rows on end that are wrong where single ones may be: a router that decides narrowly decides otherwise in
another precision, for a token now and then, whose states are another expert's."""
UNTOUCHED = 0.1
"""Part of a sample's rows that no such decision has moved: attention sees only the tokens before."""


@dataclass(frozen=True)
class Judgement:
    """Of one slot of one sample: at most one of the texts is there."""

    fault: str = ""
    undecided: str = ""
    held: int | None = None
    """The layer whose states the slot holds instead of its own."""


def judge(
    compared: Sequence[SampleErrors], layers: Sequence[int], dtype: str, routes: bool
) -> tuple[list[str], list[str]]:
    """What is wrong with the states of the samples, and what cannot be told, a line each. `routes`: the model
    has experts, of which each token takes a few."""
    faults: list[str] = []
    undecided: list[str] = []
    for one in compared:
        found = [_judge_slot(one, slot, layer, dtype, routes) for slot, layer in enumerate(layers)]
        name = f"sample {one.sample.sample_id} ({one.sample.key})"
        swapped = {
            (a, b)
            for a, first in enumerate(found)
            for b, second in enumerate(found)
            if a < b and (first.held, second.held) == (layers[b], layers[a])
        }
        for a, b in sorted(swapped):
            faults.append(f"{name}: slots {a} and {b} (layers {layers[a]} and {layers[b]}) are swapped")
        told = {slot for pair in swapped for slot in pair}
        for slot, one_slot in enumerate(found):
            place = f"{name}: slot {slot} (layer {layers[slot]})"
            if one_slot.fault and slot not in told:
                faults.append(f"{place} {one_slot.fault}")
            if one_slot.undecided:
                undecided.append(f"{place}: {one_slot.undecided}")
    return faults, undecided


def slot_figures(compared: Sequence[SampleErrors], layers: Sequence[int]) -> list[SlotFigures]:
    """Over the rows of all samples."""
    errors = np.concatenate([one.errors for one in compared])
    rounding = np.concatenate([one.rounding for one in compared])
    figures = []
    for slot, layer in enumerate(layers):
        median = np.median(errors[:, slot], axis=0)
        figures.append(
            SlotFigures(
                layer=layer,
                median=float(median[layer]),
                p99=float(np.quantile(errors[:, slot, layer], 0.99)),
                rounding=float(np.median(rounding[:, layer])),
                before=float(median[layer - 1]) if layer else None,
                after=float(median[layer + 1]),
            )
        )
    return figures


def _judge_slot(one: SampleErrors, slot: int, layer: int, dtype: str, routes: bool) -> Judgement:
    if not np.isfinite(one.errors[:, slot]).all():
        return Judgement(fault="is not finite, or so large that its distance is not")
    median = np.median(one.errors[:, slot], axis=0)  # [L + 2]
    bounds = np.maximum(TIMES_ROUNDING * np.median(one.rounding, axis=0), SMALLEST_BOUND[dtype])
    errors, bound = one.errors[:, slot, layer], bounds[layer]
    off = errors > max(TOLERANCES[dtype].row, bound, ROW_TIMES_ROUNDING * one.rounding[:, layer].max())
    wrong = _runs(off, min(RUN, len(off))) if routes else off
    is_off = np.quantile(errors, UNTOUCHED if routes else 0.5) > bound
    near = min((k for k in range(len(median)) if k != layer), key=lambda k: float(median[k]))
    if not wrong.any() and not is_off:
        if median[near] < LEAST_CONTRAST * median[layer]:
            return Judgement(
                undecided=f"the states after layer {near} are nearly as near ({median[near]:.1%}) as those"
                f" after its own ({median[layer]:.1%})"
            )
        return Judgement()
    last = len(median) - 2
    if median[near] <= min(bounds[near], median[layer] / LEAST_CONTRAST):
        text = f"holds {_states(near, last)} ({median[near]:.1%} off), not its own ({median[layer]:.0%} off)"
        return Judgement(fault=text, held=near)
    for by, shifted in one.shifted.items():
        if shifted[slot] <= bounds[layer]:
            which = "before" if by < 0 else "after"
            return Judgement(fault=f"holds at every token the states of the token {which} it")
    if not is_off:
        rows = np.flatnonzero(wrong)
        return Judgement(
            fault=f"is wrong at {len(rows)} of {len(wrong)} tokens, {rows[0]} to {rows[-1]} (off by"
            f" {np.median(errors[rows]):.0%}; all others by {np.median(np.delete(errors, rows)):.1%})"
        )
    if median[near] < median[layer]:
        return Judgement(
            fault=f"holds the states of no layer; nearest are {_states(near, last)} ({median[near]:.0%} off)"
        )
    return Judgement(
        fault=f"is off by {median[layer]:.1%}, of which rounding explains"
        f" {np.median(one.rounding[:, layer]):.1%}"
    )


def _runs(off: np.ndarray, length: int) -> np.ndarray:
    """Of the rows `off` [T], those in runs of at least `length`."""
    starts = np.flatnonzero(np.convolve(off, np.ones(length), "valid") == length)
    found = np.zeros_like(off)
    for start in starts:
        found[start : start + length] = True
    return found


def _states(layer: int, last: int) -> str:
    if layer > last:
        return "the states after the final norm"
    return f"the states after layer {layer}" if layer else "the embeddings"
