"""Kept samples on their way to batches: which side of the split, which order, which batch.

What needs to know all samples first (the split, a given number of batches) is decided from a few numbers per
conversation; the samples themselves wait in a file.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from eagle3_data.hashing import hash_bytes
from eagle3_data.tokenization.reading.rows import Sample

TRAIN, VALIDATION = "train", "validation"
SPOOL_ROWS = 256
SPOOL_SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("conversation_id", pa.string()),
        ("suffix", pa.string()),
        ("key", pa.string()),
        ("ids", pa.binary()),
        ("mask", pa.binary()),
        ("truncated", pa.bool_()),
    ]
)


@dataclass(frozen=True, slots=True)
class PlacedSample:
    """A kept sample with its names and its side of the split."""

    sample_id: str
    conversation_id: str
    split: str
    sample: Sample


StartsBatch = Callable[[int], bool]
"""Asked of each sample in order, by its number of tokens: does it open a new batch?"""


def full_batches(limit: int) -> StartsBatch:
    """Batches filled in order up to `limit` tokens: appended samples change only the last one."""
    filled = 0

    def starts(tokens: int) -> bool:
        nonlocal filled
        new = filled + tokens > limit
        filled = tokens if new else filled + tokens
        return new

    return starts


def equal_batches(number: int, total_tokens: int) -> StartsBatch:
    """At most `number` batches of about the same number of tokens: a sample goes where its middle falls."""
    current = done = 0

    def starts(tokens: int) -> bool:
        nonlocal current, done
        before, current = current, (2 * done + tokens) * number // (2 * total_tokens)
        done += tokens
        return current > before

    return starts


class Spool:
    """Samples in a file, in input order, to be read again once all are known."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = pa.ipc.new_stream(path, SPOOL_SCHEMA)
        self._pending: list[PlacedSample] = []
        self._hashes = array("Q")
        self._rows = array("L")
        self._last = ""
        self.tokens = 0

    def add(self, placed: PlacedSample) -> None:
        """Append a sample; those of one conversation must follow each other."""
        if placed.conversation_id != self._last:
            self._last = placed.conversation_id
            self._hashes.append(int(hash_bytes(self._last.encode())[:16], 16))
            self._rows.append(0)
        self._rows[-1] += 1
        self.tokens += placed.sample.tokens
        self._pending.append(placed)
        if len(self._pending) == SPOOL_ROWS:
            self._flush()

    def ordered(self, train_ratio: float) -> Iterator[PlacedSample]:
        """All samples, those to train on first, each side in input order."""
        self._flush()
        self._writer.close()
        held_out = choose_validation(
            np.array(self._hashes, np.uint64), np.array(self._rows, np.int64), train_ratio
        )
        for side in (False, True) if held_out.any() else (False,):
            yield from self._side(held_out, side)

    def _side(self, held_out: NDArray[np.bool_], side: bool) -> Iterator[PlacedSample]:
        number, last = -1, ""
        for placed in self._read():
            if placed.conversation_id != last:
                number, last = number + 1, placed.conversation_id
            if held_out[number] == side:
                yield replace(placed, split=VALIDATION if side else TRAIN)

    def _read(self) -> Iterator[PlacedSample]:
        with pa.OSFile(str(self._path)) as file, pa.ipc.open_stream(file) as stream:
            for batch in stream:
                for row in batch.to_pylist():
                    sample = Sample(row["suffix"], row["key"], row["ids"], row["mask"], row["truncated"])
                    yield PlacedSample(row["sample_id"], row["conversation_id"], TRAIN, sample)

    def _flush(self) -> None:
        rows = [
            {
                "sample_id": placed.sample_id,
                "conversation_id": placed.conversation_id,
                "suffix": placed.sample.suffix,
                "key": placed.sample.key,
                "ids": placed.sample.ids,
                "mask": placed.sample.mask,
                "truncated": placed.sample.truncated,
            }
            for placed in self._pending
        ]
        self._writer.write_batch(pa.RecordBatch.from_pylist(rows, schema=SPOOL_SCHEMA))
        self._pending = []


def choose_validation(
    hashes: NDArray[np.uint64], rows: NDArray[np.int64], train_ratio: float
) -> NDArray[np.bool_]:
    """Which conversations are held out: bool [C], from their hashes [C] and numbers of rows [C].

    speculators 0.9 trains on the first int(n * ratio) of n rows. So conversations are taken in the order of
    their hashes as long as they fit into the remaining n - int(n * ratio) rows; only if none of a fitting
    size is left do some rows stay over. At least one conversation is trained on.
    """
    held_out = np.zeros(len(rows), np.bool_)
    wanted = int(rows.sum()) - int(int(rows.sum()) * train_ratio)
    for conversation in np.argsort(hashes, kind="stable")[: max(0, len(rows) - 1)]:
        if rows[conversation] <= wanted:
            held_out[conversation] = True
            wanted -= int(rows[conversation])
        if not wanted:
            break
    return held_out


def trainer_ratio(train_rows: int, rows: int, wanted: float) -> float:
    """The ratio that makes speculators cut behind `train_rows`: the wanted one if it does, else one in the
    middle of those that do."""
    if train_rows == rows:
        return 1.0
    return wanted if int(rows * wanted) == train_rows else (train_rows + 0.5) / rows
