"""Whether two computations of the same states differ by more than rounding.

In bfloat16, states that one engine computes in other company differ by 0.2 to 2 % of a row's norm: other
shapes take other kernels, which sum in another order. Where a router chooses experts, a close decision
then falls the other way for single tokens, whose rows differ by up to a third. Another token's state, another
layer's, or none at all differs by 70 % and more, and never in one row only. So rows are judged by the piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eagle3_data.store.states import States

CHUNK_ROWS = 256
PIECE = 16
"""Tokens by which a sample is judged: no more than a block of the cache or a step of the engine."""
MAX_WRONG_TOKENS = 0.25
"""Part of a piece's tokens that may be off: close decisions of a router that fell the other way."""
FEW_TOKENS = 4
"""Of a shorter sample, all tokens must be off."""


@dataclass(frozen=True)
class Tolerance:
    """`row`: relative error above which a row is off; `median`: the largest median of a slot's rows."""

    row: float
    median: float


TOLERANCES = {"bfloat16": Tolerance(0.4, 0.1), "float32": Tolerance(1e-2, 1e-3)}
"""By dtype. Those of the canary, which compares with transformers: the same engine is nearer to itself."""


def row_errors(ours: States, theirs: States) -> np.ndarray:
    """|ours - theirs| / |theirs| of every row, [T, L] float32, of states of one shape without zero rows."""
    errors = np.empty(ours.bits.shape[:2], np.float32)
    for start in range(0, len(errors), CHUNK_ROWS):
        rows = slice(start, start + CHUNK_ROWS)
        expected = theirs.values(rows)
        difference = np.linalg.norm(ours.values(rows) - expected, axis=-1)
        errors[rows] = difference / np.linalg.norm(expected, axis=-1)
    return errors


def wrong_rows(errors: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """Which rows [T] of one slot's `errors` [T] are wrong, so that rounding does not explain them."""
    off = errors > tolerance.row
    wrong = np.zeros_like(off)
    if len(off) < FEW_TOKENS:
        return off if off.all() else wrong
    for start in range(0, max(1, len(off) - PIECE + 1), PIECE):
        end = start + PIECE if len(off) - start >= 2 * PIECE else len(off)
        if off[start:end].mean() > MAX_WRONG_TOKENS:
            wrong[start:end] = off[start:end]
    if not wrong.any() and np.median(errors) > tolerance.median:
        return errors > tolerance.median
    return wrong
