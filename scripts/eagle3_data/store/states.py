"""Reading hidden states straight from safetensors files with numpy, without torch.

The safetensors format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON
header, raw data. numpy has no bfloat16, so states stay in their bits until a check needs numbers.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.errors import SampleError, StorageError
from eagle3_data.records import Record, open_regular
from eagle3_data.system.places import explain_unusable

BITS: dict[str, np.dtype[Any]] = {"BF16": np.dtype("<u2"), "F32": np.dtype("<u4")}
TOKEN_IDS: np.dtype[Any] = np.dtype("<i8")
INFINITY = {"BF16": 0x7F80, "F32": 0x7F800000}
"""Bits of +inf; larger ones, sign removed, are NaN."""
SIGNLESS = {"BF16": 0x7FFF, "F32": 0x7FFFFFFF}
DTYPES = {"bfloat16": "BF16", "float32": "F32"}
CHUNK_ROWS = 512
MANTISSA_BITS = {"BF16": 7, "F32": 23}
DEGENERATE_OCTAVES = 24
"""A row is degenerate where most of its numbers are smaller than its largest by 2^-24. Trained models have
outliers, in rows that gather attention, of up to 2^17 times the usual size (Sun et al., Massive Activations
in Large Language Models, 2024); a row with one number left, or with one that overflowed, is far above."""
LOOKED_AT = 64
"""Numbers of a row, evenly spaced, by which its usual size is judged, where a quarter of them says that it
may be degenerate."""


@dataclass(frozen=True)
class States:
    """A sample's states, mapped from the file: `bits` [T, L, H] unsigned integers of the dtype's width,
    `token_ids` [T] int64. `file` maps all its bytes, among which those of `bits` begin at `begin`."""

    dtype: str
    bits: np.ndarray
    token_ids: np.ndarray
    provenance: dict[str, str]
    file: mmap.mmap
    begin: int

    def values(self, rows: slice | np.ndarray = slice(None), slot: int | slice = slice(None)) -> np.ndarray:
        """float32 of the chosen rows and slots, exact."""
        bits = self.bits[rows, slot]
        return (bits.astype("<u4") << 16).view(np.float32) if self.dtype == "BF16" else bits.view(np.float32)


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
        states, ids = header.hidden_states, header.token_ids
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
    if states.dtype != DTYPES[dtype]:
        problems.append(("wrong-dtype", f"hidden_states are {states.dtype}, expected {DTYPES[dtype]}"))
    if states.token_ids.shape != (len(token_ids),) or not np.array_equal(states.token_ids, token_ids):
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
    check = NumberCheck(states.dtype)
    for start in range(0, len(states.bits), CHUNK_ROWS):
        check.take(states.bits[start : start + CHUNK_ROWS])
    return check.problems(states.token_ids)


class NumberCheck:
    """Looks at the numbers of a sample, some rows at a time."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._rows = 0
        self._bad: dict[str, list[tuple[int, int]]] = {"not-finite": [], "all-zero": [], "degenerate": []}
        self._first: np.ndarray | None = None
        self._constant: list[int] = []
        self._magnitudes: np.ndarray | None = None

    def take(self, bits: np.ndarray) -> np.ndarray:
        """The next rows [rows, layers, H]. Returns the bits [rows, layers] of each one's largest magnitude:
        those are in order of size."""
        if self._magnitudes is None or len(self._magnitudes) < len(bits):
            self._magnitudes = np.empty_like(bits)
        magnitudes = self._magnitudes[: len(bits)]
        np.bitwise_and(bits, bits.dtype.type(SIGNLESS[self._dtype]), out=magnitudes)
        largest: np.ndarray = magnitudes.max(axis=-1)
        infinite, zero = largest >= INFINITY[self._dtype], largest == 0
        found = (infinite, zero, _degenerate(magnitudes, largest, self._dtype) & ~infinite & ~zero)
        for name, rows in zip(self._bad, found, strict=True):
            if rows.any():
                self._bad[name] += [(self._rows + int(t), int(k)) for t, k in np.argwhere(rows)]
        if self._first is None:
            self._first, self._constant = bits[0].copy(), list(range(bits.shape[1]))
        self._constant = [k for k in self._constant if _is_constant(bits[:, k], self._first[k])]
        self._rows += len(bits)
        return largest

    def problems(self, token_ids: np.ndarray) -> list[tuple[str, str]]:
        problems = []
        for name, places in self._bad.items():
            if places:
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
        if self._constant and self._rows > 1 and (token_ids != token_ids[0]).any():
            slots = ", ".join(map(str, self._constant))
            problems.append(("constant", f"slot {slots} has the same state at every token"))
        return problems


def _is_constant(rows: np.ndarray, first: np.ndarray) -> bool:
    """Whether all `rows` [rows, H] equal `first`; most slots differ in a row that is looked at first."""
    return bool((rows[-1] == first).all() and (rows == first).all())


def _degenerate(magnitudes: np.ndarray, largest: np.ndarray, dtype: str) -> np.ndarray:
    """Which rows [rows, layers] of `magnitudes` [rows, layers, H] have mostly negligible numbers beside their
    `largest`. Bits of magnitudes are in order of size; an octave is one step of the exponent."""
    octaves = largest.dtype.type(DEGENERATE_OCTAVES << MANTISSA_BITS[dtype])
    least = largest - np.minimum(largest, octaves)
    step = max(1, magnitudes.shape[-1] // LOOKED_AT)
    few = magnitudes[..., :: 4 * step]
    suspect = np.count_nonzero(few < least[..., None], axis=-1) * 2 > few.shape[-1]
    if not suspect.any():
        return suspect
    some = magnitudes[suspect][..., ::step]
    suspect[suspect] = np.count_nonzero(some < least[suspect][..., None], axis=-1) * 4 > some.shape[-1] * 3
    return suspect
