"""Shared prefix: samples whose first tokens are the same have the same states there, in every slot.

The index knows of each sample's ids only hashes of the first 16, 32, 64 ... of them. A sample is compared
with another one that shares its longest such prefix, over all tokens they really share, which their files
say. Where the two differ, further samples with that prefix are asked which of them is wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import xxhash

from eagle3_data.records.replay import SlotErrors
from eagle3_data.store.states import FP8, States
from eagle3_data.validation.likeness import TOLERANCES, Tolerance, row_errors, wrong_rows

SHORTEST = 16
"""Tokens that two samples share at least."""
ROWS = 32
"""Compared of a shared prefix, evenly spaced."""
TIMES_MEASURED, LEAST = 3.0, Tolerance(0.05, 0.03, 0.02)
"""Where a replay has measured a slot's errors, what is so many times larger is no rounding. Other kernels
give up to 2 %."""
LEAST_OF_FP8 = Tolerance(0.1, 0.08, 0.06)
"""Where two states are nearly the same, their 8 bits differ by a whole step here and there."""
WITNESSES = 4
"""Further samples with the same prefix that are asked at most."""
LOOKED_FOR = 256
"""Samples among which a partner is looked for at most."""


class PrefixIndex:
    """Which samples of a run begin alike: 12 bytes for each prefix of each sample."""

    def __init__(self, samples: Iterable[tuple[str, np.ndarray]]) -> None:
        """Keys and token ids [T] int32, in the order of the run."""
        self.keys: list[str] = []
        hashes: list[int] = []
        owners: list[int] = []
        for number, (key, ids) in enumerate(samples):
            self.keys.append(key)
            for one in _prefix_hashes(ids):
                hashes.append(one)
                owners.append(number)
        unordered = np.array(hashes, np.uint64)
        order = np.argsort(unordered, kind="stable")
        self._hashes, self._owners = unordered[order], np.array(owners, np.int32)[order]

    def alike(self, key: str, ids: np.ndarray) -> Iterator[str]:
        """Other samples that begin as the sample `key` with token ids [T] does: those that share most first,
        then in the order of the run; each once."""
        met = {key}
        for one in reversed(list(_prefix_hashes(ids))):
            start, end = (np.searchsorted(self._hashes, np.uint64(one), side) for side in ("left", "right"))
            for owner in self._owners[start:end]:
                if (other := self.keys[owner]) not in met:
                    met.add(other)
                    yield other


def _prefix_hashes(ids: np.ndarray) -> Iterator[int]:
    length = SHORTEST
    while length <= len(ids):
        yield xxhash.xxh3_64_intdigest(ids[:length].astype("<i4").tobytes(), seed=length)
        length *= 2


@dataclass(frozen=True)
class Comparison:
    """Of the first rows of two samples: how many were compared, their largest relative error where all slots
    agree, and the slots that do not."""

    rows: int
    largest_error: float
    disagreeing: tuple[int, ...]
    shared: int


def compare(one: States, other: States, tolerances: Sequence[Tolerance]) -> Comparison | None:
    """None where the two share too few tokens. Reads some rows of each."""
    shorter = min(len(one.token_ids), len(other.token_ids))
    differing = np.flatnonzero(one.token_ids[:shorter] != other.token_ids[:shorter])
    shared = int(differing[0]) if len(differing) else shorter
    if shared < SHORTEST or one.bits.shape[1:] != other.bits.shape[1:] or one.dtype != other.dtype:
        return None
    rows = np.unique(np.linspace(0, shared - 1, ROWS).astype(int))
    if one.equals(other, rows):
        return Comparison(len(rows), 0.0, (), shared)
    errors = row_errors(one, other, rows)
    wrong = [wrong_rows(errors[:, slot], tolerance) for slot, tolerance in enumerate(tolerances)]
    disagreeing = tuple(slot for slot, found in enumerate(wrong) if found.any())
    largest = float(errors.max()) if not disagreeing else 0.0
    return Comparison(len(rows), largest, disagreeing, shared)


def tolerances_of(measured: Sequence[SlotErrors], slots: int, dtype: str) -> list[Tolerance]:
    """Of each slot: as between any two computations of the same states, or less where the replay of the
    samples' pass has measured less."""
    default, least = TOLERANCES[dtype], LEAST_OF_FP8 if dtype == FP8 else LEAST
    if len(measured) != slots:
        return [default] * slots
    return [
        Tolerance(
            min(default.row, max(least.row, TIMES_MEASURED * slot.p99)),
            min(default.piece, max(least.piece, TIMES_MEASURED * slot.p99)),
            min(default.slot, max(least.slot, TIMES_MEASURED * slot.median)),
        )
        for slot in measured
    ]


@dataclass(frozen=True)
class Partner:
    """A sample, the one it was compared with, and the result."""

    key: str
    other: str
    comparison: Comparison


class PrefixCheck:
    """Compares samples of a run. `find` opens the states of a key, or gives None where there are none to be
    had; `tolerances` gives those of each slot for two keys."""

    def __init__(
        self,
        index: PrefixIndex,
        find: Callable[[str], States | None],
        tolerances: Callable[[str, str], Sequence[Tolerance]],
    ) -> None:
        self._index, self._find, self._tolerances = index, find, tolerances

    def partner(self, key: str, rejected: Collection[str]) -> Partner | None:
        """Compare a sample with the first that begins alike and is not rejected; None where there is none."""
        return next(self._partners(key, {key, *rejected}), None)

    def wrong(self, pair: Partner, rejected: Collection[str]) -> tuple[str, ...]:
        """Which of a pair that disagrees is wrong: the one with which fewer of some other samples agree;
        both, if there are none, or as many agree with each."""
        agree = {pair.key: 0, pair.other: 0}
        asked = (one.other for one in self._partners(pair.key, {pair.key, pair.other, *rejected}))
        for witness in islice(asked, WITNESSES):
            for key in agree:
                comparison = self._compare(key, witness)
                agree[key] += comparison is not None and not comparison.disagreeing
        least = min(agree.values())
        return tuple(key for key, count in agree.items() if count == least)

    def _partners(self, key: str, without: Collection[str]) -> Iterator[Partner]:
        if (states := self._find(key)) is None:
            return
        for other in islice(self._index.alike(key, states.token_ids), LOOKED_FOR):
            if other in without or (theirs := self._find(other)) is None:
                continue
            if comparison := compare(states, theirs, self._tolerances(key, other)):
                yield Partner(key, other, comparison)

    def _compare(self, key: str, other: str) -> Comparison | None:
        one, two = self._find(key), self._find(other)
        return compare(one, two, self._tolerances(key, other)) if one and two else None
