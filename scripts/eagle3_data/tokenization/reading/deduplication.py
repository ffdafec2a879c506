"""Exact deduplication in 16 bytes a sample and a table that is at most half full."""

from __future__ import annotations

import numpy as np

EMPTY = 0


class KeySet:
    """A set of 128-bit keys (32 hex digits) in one numpy array: open addressing, linear probing. Grows by
    doubling."""

    def __init__(self, capacity: int = 1 << 12) -> None:
        """`capacity`: initial number of places, a power of two."""
        self._table = np.zeros((capacity, 2), np.uint64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, key: str) -> bool:
        """Add a key; False if it was there. (A key whose lower half is zero is taken for the one whose lower
        half is one.)"""
        if not self._insert(int(key[:16], 16), int(key[16:], 16) or 1):
            return False
        self._count += 1
        if 2 * self._count > len(self._table):
            self._grow()
        return True

    def _insert(self, high: int, low: int) -> bool:
        table, last = self._table, len(self._table) - 1
        place = low & last
        while (found := int(table[place, 1])) != EMPTY:
            if found == low and int(table[place, 0]) == high:
                return False
            place = (place + 1) & last
        table[place] = high, low
        return True

    def _grow(self) -> None:
        old = self._table[self._table[:, 1] != EMPTY]
        self._table = np.zeros((2 * len(self._table), 2), np.uint64)
        for high, low in old.tolist():
            self._insert(high, low)
