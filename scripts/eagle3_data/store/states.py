"""Reading hidden states straight from safetensors files with numpy, without torch.

The safetensors format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON
header, raw data. numpy has no bfloat16 and no floats of 8 bits, so states stay in their bits until a check
needs numbers.
"""

from __future__ import annotations

import json
import math
import mmap
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.errors import SampleError, StorageError
from eagle3_data.records import Record, open_regular
from eagle3_data.store.magnitudes import FindLargest, find_largest
from eagle3_data.system.places import explain_unusable

FP8 = "fp8"
"""The dtype, in words, of states in 8 bits: float8_e4m3fn, scaled by token and slot."""
SCALES = "hidden_states_scales"
BITS: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"), "F32": np.dtype("<u4"), "F8_E4M3": np.dtype("u1"),
}  # fmt: skip
SCALE: np.dtype[Any] = np.dtype("<f4")
TOKEN_IDS: np.dtype[Any] = np.dtype("<i8")
INFINITY = {"BF16": 0x7F80, "F32": 0x7F800000, "F8_E4M3": 0x7F}
"""Bits of +inf; larger ones, sign removed, are NaN. The 8-bit format has NaN only."""
SIGNLESS = {"BF16": 0x7FFF, "F32": 0x7FFFFFFF, "F8_E4M3": 0x7F}
DTYPES = {"bfloat16": "BF16", "float32": "F32", FP8: "F8_E4M3"}
CHUNK_ROWS = 512
MANTISSA_BITS = {"BF16": 7, "F32": 23, "F8_E4M3": 3}
E4M3_LARGEST = 448.0
DEGENERATE_OCTAVES = 24
"""A row is degenerate where most of its numbers are smaller than its largest by 2^-24. Trained models have
outliers, in rows that gather attention, of up to 2^17 times the usual size (Sun et al., Massive Activations
in Large Language Models, 2024); a row with one number left, or with one that overflowed, is far above. What
is smaller than the largest by 2^-18 is zero in 8 bits: there, a row of which most is lost is degenerate."""
LOOKED_AT = 64
"""Numbers of a row, evenly spaced, by which its usual size is judged, where a quarter of them says that it
may be degenerate."""


@dataclass(frozen=True)
class States:
    """A sample's states, mapped from the file: `bits` [T, L, H] unsigned integers of the dtype's width,
    `token_ids` [T] int64. Of states in 8 bits, `scales` [T, L, 1] float32. `file` maps all its bytes, among
    which those of `bits` begin at `begin`; None of states that are not in a file."""

    dtype: str
    bits: np.ndarray
    token_ids: np.ndarray
    provenance: dict[str, str]
    file: mmap.mmap | None = None
    begin: int = 0
    scales: np.ndarray | None = None

    def values(self, rows: slice | np.ndarray = slice(None), slot: int | slice = slice(None)) -> np.ndarray:
        """float32 of the chosen rows and slots, exact."""
        bits = self.bits[rows, slot]
        if self.scales is not None:
            scaled: np.ndarray = E4M3[bits] * self.scales[rows, slot]
            return scaled
        if self.dtype == "BF16":
            bits = bits.astype("<u4")
            bits <<= 16
        return bits.view(np.float32)

    def equals(self, other: States, rows: np.ndarray) -> bool:
        """Whether the states of these rows are the same, bit by bit."""
        pairs = [(self.bits, other.bits)]
        if self.scales is not None and other.scales is not None:
            pairs.append((self.scales, other.scales))
        return self.dtype == other.dtype and all(np.array_equal(a[rows], b[rows]) for a, b in pairs)

    def magnitudes(self, largest: np.ndarray) -> tuple[np.ndarray, int]:
        """What `NumberCheck.largest` [T, layers] stands for, as bits that are in order of size, and how many
        of them are a step of the exponent's."""
        if self.scales is None:
            return largest, MANTISSA_BITS[self.dtype]
        return (E4M3[largest] * self.scales[..., 0]).view("<u4"), MANTISSA_BITS["F32"]


def _e4m3_numbers() -> np.ndarray:
    """The float32 [256] that the bits of float8_e4m3fn stand for."""
    bits = np.arange(256)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    numbers = np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    numbers[(bits & 127) == INFINITY["F8_E4M3"]] = np.nan
    return np.where(bits & 128, -numbers, numbers).astype(np.float32)


E4M3 = _e4m3_numbers()


def open_states(path: Path) -> States:
    """Map a states file. Raises SampleError if it is not a whole safetensors file with the two tensors,
    StorageError where it may not be read."""
    try:
        with open_regular(path) as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        raw = np.frombuffer(mapped, dtype=np.uint8)
        length = int.from_bytes(raw[:8].tobytes(), "little")
        if length > raw.size - 8:
            raise ValueError(f"header of {length} bytes in a file of {raw.size}")
        header = Header.from_json(json.loads(raw[8 : 8 + length].tobytes()))
        states, ids, scales = header.hidden_states, header.token_ids, header.scales
        if (states.dtype == DTYPES[FP8]) != (scales is not None) or (scales and scales.dtype != "F32"):
            raise ValueError(f"hidden_states are {states.dtype}, and scales, which 8 bits need, {scales}")
        if states.dtype not in BITS or ids.dtype != "I64":
            raise ValueError(
                f"hidden_states are {states.dtype}, token_ids {ids.dtype}; expected"
                f" {' or '.join(BITS)}, and I64"
            )
        return States(
            states.dtype,
            _tensor(raw, 8 + length, states, BITS[states.dtype]),
            _tensor(raw, 8 + length, ids, TOKEN_IDS),
            _provenance(header.metadata.get("provenance", "{}")),
            mapped,
            8 + length + states.data_offsets[0],
            _tensor(raw, 8 + length, scales, SCALE) if scales else None,
        )
    except PermissionError as error:
        raise StorageError(explain_unusable(error, path)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise SampleError(f"{path} is not a whole file of hidden states") from error


@dataclass(frozen=True)
class TensorEntry(Record):
    """What a safetensors header says of one tensor; offsets count from the end of the header."""

    dtype: str
    shape: list[int]
    data_offsets: list[int]


@dataclass(frozen=True, kw_only=True)
class Header(Record):
    """A states file's header."""

    hidden_states: TensorEntry
    token_ids: TensorEntry
    scales: TensorEntry | None = field(default=None, metadata={"key": SCALES})
    metadata: dict[str, str] = field(default_factory=dict, metadata={"key": "__metadata__"})


def _tensor(raw: np.ndarray, base: int, entry: TensorEntry, dtype: np.dtype[Any]) -> np.ndarray:
    start, end = entry.data_offsets
    if base + end > raw.size:
        raise ValueError(f"data up to byte {base + end} in a file of {raw.size}: truncated")
    if min(start, *entry.shape) < 0 or end - start != math.prod(entry.shape) * dtype.itemsize:
        raise ValueError(f"a tensor of shape {entry.shape} in bytes {start} to {end}")
    return raw[base + start : base + end].view(dtype).reshape(entry.shape)


def _provenance(text: str) -> dict[str, str]:
    provenance = json.loads(text)
    if not isinstance(provenance, dict):
        raise ValueError(f"its provenance must be a JSON object, not {text[:40]}")
    return provenance


def structure_problems(
    states: States, token_ids: Sequence[int], layers: int, hidden_size: int, dtype: str
) -> list[tuple[str, str]]:
    """What is wrong with a sample's keys, shapes, dtype or ids, as (id, message)."""
    problems = []
    expected = (len(token_ids), layers, hidden_size)
    if states.bits.shape != expected:
        problems.append(
            (
                "wrong-shape",
                (
                    f"hidden_states are {list(states.bits.shape)}, expected [tokens, layers, hidden size] ="
                    f" {list(expected)}"
                ),
            )
        )
    if states.scales is not None and states.scales.shape != (*states.bits.shape[:2], 1):
        problems.append(
            ("wrong-scales", f"scales are {list(states.scales.shape)}, expected one for each token and slot")
        )
    if states.dtype != DTYPES[dtype]:
        problems.append(("wrong-dtype", f"hidden_states are {states.dtype}, expected {DTYPES[dtype]}"))
    # array takes a tuple twice as fast as numpy does
    if not np.array_equal(states.token_ids, np.array(array("q", token_ids), TOKEN_IDS)):
        problems.append(
            (
                "wrong-token-ids",
                f"the file's {states.token_ids.size} token ids are not the sample's {len(token_ids)}",
            )
        )
    return problems


def number_problems(states: States) -> list[tuple[str, str]]:
    """Rows that are not finite, all zero or degenerate, and slots that are the same in every row, as (id,
    message)."""
    check = NumberCheck(states)
    for start in range(0, len(states.bits), CHUNK_ROWS):
        check.take(start, start + CHUNK_ROWS)
    return check.problems()


class NumberCheck:
    """Looks at the numbers of a sample, some rows at a time. `largest` holds the bits [T, layers] of each
    row's largest magnitude."""

    def __init__(self, states: States, find_largest: FindLargest = find_largest) -> None:
        self._states, self._bits, self._find_largest = states, states.bits, find_largest
        self.largest = np.zeros(self._bits.shape[:2], self._bits.dtype)
        step = max(1, self._bits.shape[-1] // LOOKED_AT)
        self._few_step = 4 * step
        few = len(range(0, self._bits.shape[-1], self._few_step))
        self._few = np.empty((*self._bits.shape[:2], few), self._bits.dtype)
        self._constant = list(range(self._bits.shape[1]))

    def take(self, start: int, end: int) -> None:
        """Look at these rows."""
        self._find_largest(self._bits[start:end], self.largest[start:end])
        self._few[start:end] = self._bits[start:end, :, :: self._few_step]
        if self._constant:
            rows, first = self._bits[start:end], self._bits[0]
            self._constant = [k for k in self._constant if _is_constant(rows[:, k], first[k])]

    def problems(self) -> list[tuple[str, str]]:
        states, largest = self._states, self.largest
        infinite, zero = largest >= INFINITY[states.dtype], largest == 0
        if states.scales is not None:
            infinite |= ~((states.scales[..., 0] > 0) & np.isfinite(states.scales[..., 0]))
        bad = {"not-finite": infinite, "all-zero": zero, "degenerate": self._degenerate() & ~infinite & ~zero}
        problems = []
        for name, rows in bad.items():
            if places := np.argwhere(rows).tolist():
                examples = ", ".join(f"token {t} slot {k}" for t, k in places[:3])
                problems.append(
                    (
                        name,
                        (
                            f"{len(places)} state rows are {name.replace('-', ' ')}:"
                            f" {examples}{' ...' if len(places) > 3 else ''}"
                        ),
                    )
                )
        ids = states.token_ids
        if self._constant and len(states.bits) > 1 and (ids != ids[0]).any():
            slots = ", ".join(map(str, self._constant))
            problems.append(("constant", f"slot {slots} has the same state at every token"))
        return problems

    def _degenerate(self) -> np.ndarray:
        """Which rows [T, layers] have mostly negligible numbers beside their largest. An octave is one step
        of the exponent."""
        dtype, signless = self._states.dtype, SIGNLESS[self._states.dtype]
        octaves = self.largest.dtype.type(DEGENERATE_OCTAVES << MANTISSA_BITS[dtype])
        least = np.maximum(self.largest - np.minimum(self.largest, octaves), 1)
        found = _mostly_below(np.ascontiguousarray(self._few.transpose(2, 0, 1)) & signless, least, 0.5)
        if found.any():
            step = self._few_step // 4
            some = self._bits[found][..., ::step] & signless
            found[found] = _mostly_below(some.T, least[found], 0.75)
        return found


def _mostly_below(magnitudes: np.ndarray, least: np.ndarray, share: float) -> np.ndarray:
    """Of which rows, `magnitudes` [n, rows ...], most are below that row's `least`."""
    below = (magnitudes < least).sum(axis=0, dtype=np.uint8)  # quicker than counting along the last axis
    found: np.ndarray = below > share * len(magnitudes)
    return found


def _is_constant(rows: np.ndarray, first: np.ndarray) -> bool:
    """Whether all `rows` [rows, H] equal `first`; most slots differ in a row that is looked at first."""
    return bool((rows[-1] == first).all() and (rows == first).all())
