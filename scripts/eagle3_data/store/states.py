"""Reading hidden states straight from safetensors files with numpy, without torch.

The safetensors format (github.com/huggingface/safetensors): 8 bytes little-endian header length, a JSON
header, raw data. numpy has no bfloat16, so states stay in their bits until a check needs numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
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
"""Numbers of a row, evenly spaced, by which its usual size is judged."""


@dataclass(frozen=True)
class States:
    """A sample's states, mapped from the file: `bits` [T, L, H] unsigned integers of the dtype's width,
    `token_ids` [T] int64."""

    dtype: str
    bits: np.ndarray
    token_ids: np.ndarray
    provenance: dict[str, str]

    def values(self, rows: slice = slice(None), slot: int | slice = slice(None)) -> np.ndarray:
        """float32 of the chosen rows and slots, exact."""
        bits = self.bits[rows, slot]
        return (bits.astype("<u4") << 16).view(np.float32) if self.dtype == "BF16" else bits.view(np.float32)


def open_states(path: Path) -> States:
    """Map a states file. Raises SampleError if it is not a whole safetensors file with the two tensors,
    StorageError where it may not be read."""
    try:
        with open_regular(path) as file:
            raw = np.memmap(file, dtype=np.uint8, mode="r")
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
    problems = []
    bad: dict[str, list[tuple[int, int]]] = {"not-finite": [], "all-zero": [], "degenerate": []}
    for start, bits in _chunks(states.bits):
        largest = (bits & SIGNLESS[states.dtype]).max(axis=-1)  # [rows, layers]
        infinite, zero = largest >= INFINITY[states.dtype], largest == 0
        found = (infinite, zero, _degenerate(bits, largest, states.dtype) & ~infinite & ~zero)
        for name, rows in zip(bad, found, strict=True):
            bad[name] += [(start + int(t), int(k)) for t, k in np.argwhere(rows)]
    for name, places in bad.items():
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
    if len(states.bits) > 1 and len(set(states.token_ids.tolist())) > 1:
        constant = [
            slot
            for slot in range(states.bits.shape[1])
            if (states.bits[:, slot] == states.bits[0, slot]).all()
        ]
        if constant:
            problems.append(
                ("constant", f"slot {', '.join(map(str, constant))} has the same state at every token")
            )
    return problems


def _degenerate(bits: np.ndarray, largest: np.ndarray, dtype: str) -> np.ndarray:
    """Which rows [rows, layers] of `bits` [rows, layers, H] have mostly negligible numbers beside their
    `largest` magnitude. Bits of magnitudes are in order of size; an octave is one step of the exponent."""
    some = bits[..., :: max(1, bits.shape[-1] // LOOKED_AT)] & SIGNLESS[dtype]
    least = largest - np.minimum(largest, bits.dtype.type(DEGENERATE_OCTAVES << MANTISSA_BITS[dtype]))
    return np.count_nonzero(some < least[..., None], axis=-1) * 4 > some.shape[-1] * 3


def _chunks(bits: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    for start in range(0, len(bits), CHUNK_ROWS):
        yield start, bits[start : start + CHUNK_ROWS]
