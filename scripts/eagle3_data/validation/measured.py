"""What is measured of the samples of a batch, and its table `validation/tables/<batch>.parquet`: one row for
each slot of each sample, from which a job that was killed goes on, and reports draw."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.records import remove
from eagle3_data.validation.reading import SlotSizes
from eagle3_data.validation.token_loss import TokenLoss

VERSION = 1
"""Raise it when a measurement changes its meaning: tables of another version are measured again."""
HEADER = b"eagle3_data"
SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("key", pa.string()),
        ("tokens", pa.int32()),
        ("size_bytes", pa.int64()),
        ("rejected", pa.string()),
        ("last_row", pa.uint64()),
        ("loss", pa.float64()),
        ("contrast", pa.float64()),
        ("weakest_contrast", pa.float64()),
        ("weakest_row", pa.int32()),
        ("tested_rows", pa.int32()),
        ("layer", pa.int32()),
        ("norm_5", pa.float32()),
        ("norm_50", pa.float32()),
        ("norm_95", pa.float32()),
        ("near_zero_rows", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Measured:
    """Of one sample. `rejected` says why it is, by what it holds alone; then nothing else is known.
    `last_row` is the hash of its last state."""

    sample_id: str
    key: str
    tokens: int
    rejected: str = ""
    size_bytes: int = 0
    last_row: int = 0
    slots: tuple[SlotSizes, ...] = ()
    token_loss: TokenLoss | None = None


@dataclass(frozen=True)
class TableHeader:
    """What a table is of: a batch's fingerprint, the pass that extracted it, and the time by the store's
    clock before which what is measured was there. `unknown_head` says why no last slot was measured, if
    so."""

    fingerprint: str
    extracted: str
    measured_at_ns: int
    unknown_head: str = ""
    version: int = VERSION


def write_table(path: Path, header: TableHeader, samples: Sequence[Measured], layers: Sequence[int]) -> None:
    rows = [row for one in samples for row in _rows(one, layers)]
    table = pa.Table.from_pylist(rows, SCHEMA.with_metadata({HEADER: json.dumps(asdict(header))}))
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # one job at a time has a batch
    pq.write_table(table, part, compression="zstd")
    part.replace(path)


def find_table(path: Path, fingerprint: str) -> tuple[TableHeader, list[Measured]] | None:
    """None where there is no readable table of this version of the batch with that fingerprint."""
    try:
        table = pq.read_table(path)
        header = TableHeader(**json.loads(table.schema.metadata[HEADER]))
        if (header.version, header.fingerprint) != (VERSION, fingerprint):
            return None
        return header, list(_samples(table.to_pylist()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):  # damaged: it is measured again
        remove(path)
        return None


def _rows(one: Measured, layers: Sequence[int]) -> Iterator[dict[str, Any]]:
    loss = one.token_loss
    row = {
        "sample_id": one.sample_id,
        "key": one.key,
        "tokens": one.tokens,
        "size_bytes": one.size_bytes,
        "rejected": one.rejected,
        "last_row": one.last_row,
        "loss": loss and loss.loss,
        "contrast": loss and loss.contrast,
        "weakest_contrast": loss and loss.weakest,
        "weakest_row": loss and loss.weakest_row,
        "tested_rows": loss and loss.rows,
    }
    if not one.slots:
        yield row
    for layer, slot in zip(layers, one.slots, strict=False):
        low, middle, high = slot.norms
        norms = {"norm_5": low, "norm_50": middle, "norm_95": high}
        yield {**row, "layer": layer, **norms, "near_zero_rows": slot.near_zero}


def _samples(rows: list[dict[str, Any]]) -> Iterator[Measured]:
    for _, group in groupby(rows, key=lambda row: (row["key"], row["sample_id"])):
        slots = list(group)
        first = slots[0]
        names = ("loss", "contrast", "weakest_contrast", "weakest_row", "tested_rows")
        yield Measured(
            sample_id=first["sample_id"],
            key=first["key"],
            tokens=first["tokens"],
            rejected=first["rejected"],
            size_bytes=first["size_bytes"],
            last_row=first["last_row"],
            slots=tuple(
                SlotSizes((row["norm_5"], row["norm_50"], row["norm_95"]), row["near_zero_rows"])
                for row in slots
                if row["layer"] is not None
            ),
            token_loss=TokenLoss(*(first[name] for name in names)) if first["loss"] is not None else None,
        )
