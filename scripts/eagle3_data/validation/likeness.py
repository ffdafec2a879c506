"""Whether two computations of the same states differ by more than rounding.

In bfloat16, a state of one engine differs by 0.5 to 1.5 % of its norm from float32 after eight layers
(measured on CPUs and an H200), so by 4 % after sixty, and two that were computed in different company by
1.4 times that: other shapes take other kernels, which sum in another order. (On the CPU they do not: both
demo targets come out with the same bits.) Where a router chooses experts, a close decision then falls the
other way for single tokens, whose rows differ by up to a third. Another token's state differs by 140 % and
another layer's by 35 % and more in the demo targets, and never in one row only. So a slot is judged by its
median row and, for what befalls only a part of the tokens, by pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from eagle3_data.store.states import States

CHUNK_BYTES = 1 << 18
"""Of one side's float32 numbers, compared while they are in the processor's cache."""
PIECE = 16
"""Tokens by which a sample is judged: no more than a block of the cache or a step of the engine."""
MAX_WRONG_TOKENS = 0.25
"""Part of a piece's tokens that may be off: close decisions of a router that fell the other way."""
FEW_TOKENS = 4
"""Of a shorter sample, all tokens must be off."""


@dataclass(frozen=True)
class Tolerance:
    """Relative errors: above `row` a row is off; above `piece` is the median row of a wrong piece, above
    `slot` that of a wrong slot."""

    row: float
    piece: float
    slot: float


TOLERANCES = {
    "bfloat16": Tolerance(0.4, 0.2, 0.1),
    "fp8": Tolerance(0.4, 0.2, 0.1),
    "float32": Tolerance(1e-2, 2e-3, 1e-3),
}
"""By the dtype of the stored states; 8 bits add 2.6 % to the error of bfloat16. Rows and slots as in the
canary, which compares with transformers: the same engine is nearer to itself."""


def relative_errors(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """|ours - theirs| / |theirs| of float32 states [..., H] without zero rows."""
    difference = ours - theirs
    squares = (np.einsum("...h,...h->...", one, one) for one in (difference, theirs))
    errors: np.ndarray = np.sqrt(np.divide(*squares))
    return errors


def row_errors(ours: States, theirs: States, rows: np.ndarray | None = None) -> np.ndarray:
    """Relative errors [n, L] float32 of the n `rows` of two samples, all if they are not named, without zero
    rows."""
    rows = np.arange(len(ours.bits)) if rows is None else rows
    errors = np.empty((len(rows), ours.bits.shape[1]), np.float32)
    step = max(1, CHUNK_BYTES // (4 * ours.bits[0].size))
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        errors[start : start + step] = relative_errors(ours.values(some), theirs.values(some))
    return errors


def wrong_rows(errors: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """Which rows [T] of one slot's `errors` [T] are wrong, so that rounding does not explain them."""
    off = errors > tolerance.row
    if errors.max() <= min(tolerance.row, tolerance.piece, tolerance.slot):
        return off  # the usual case, decided at once: none is
    if len(off) < FEW_TOKENS:
        return off & off.all()
    if np.median(errors) > tolerance.slot:
        return errors > tolerance.slot
    wrong = np.zeros_like(off)
    for start in range(0, max(1, len(off) - PIECE + 1), PIECE):
        piece = slice(start, start + PIECE if len(off) - start >= 2 * PIECE else len(off))
        if np.median(errors[piece]) > tolerance.piece:
            wrong[piece] = errors[piece] > tolerance.piece
        elif off[piece].mean() > MAX_WRONG_TOKENS:
            wrong[piece] = off[piece]
    return wrong
