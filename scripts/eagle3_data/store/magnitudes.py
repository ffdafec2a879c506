"""The largest magnitude of each row of states, as bits: without its sign, a floating-point number's bits are
in order of size."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

FindLargest = Callable[[np.ndarray, np.ndarray], None]
"""Writes to its second argument [rows, layers] the largest of the bits [rows, layers, H] without signs; all
are unsigned integers of one width."""


def find_largest(bits: np.ndarray, found: np.ndarray) -> None:
    """With numpy, in two passes: the largest as signed integers are those of the largest positive number, as
    unsigned ones those of the most negative one, if there is one."""
    positive = np.maximum(bits.view(f"<i{bits.itemsize}").max(axis=-1), 0).view(bits.dtype)
    signless = bits.dtype.type(np.iinfo(bits.dtype).max >> 1)
    np.maximum(positive, bits.max(axis=-1) & signless, out=found)


@cache
def compiled_find_largest() -> FindLargest:
    """The same, seven times as fast. The first call compiles it, which takes half a second."""
    import numba

    def find(bits: np.ndarray, found: np.ndarray) -> None:
        unsigned = bits.dtype.type  # any other number would make each step one of 64 bits
        for row in range(bits.shape[0]):
            for slot in range(bits.shape[1]):
                most = unsigned(0)
                for place in range(bits.shape[2]):
                    most = max(most, unsigned(bits[row, slot, place] << unsigned(1)))
                found[row, slot] = most >> unsigned(1)

    compiled: FindLargest = numba.njit(nogil=True)(find)
    return compiled
