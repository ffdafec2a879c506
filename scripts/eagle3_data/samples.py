"""Reading tokenized samples: `tokens/samples.parquet`, one row group a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import InputError, StorageError
from eagle3_data.hashing import hash_bytes
from eagle3_data.records import open_regular
from eagle3_data.records.batch_index import SampleName
from eagle3_data.system.places import explain_unusable

TOKEN_IDS: np.dtype[Any] = np.dtype("<i4")
"""What a key is the hash of (`eagle3_data.hashing.sample_key`)."""
TOKENIZE_AGAIN = "delete it and run the same command again, which tokenizes again"


@dataclass(frozen=True)
class Sample:
    """A tokenized sample. `loss_mask[t]` is 1 where token t itself is trained."""

    sample_id: str
    key: str
    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]


class SampleFile:
    """Batches of samples, read one at a time."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        try:
            with open_regular(path):
                self._file = pq.ParquetFile(path)
        except PermissionError as error:
            raise StorageError(explain_unusable(error, Path(path))) from None
        except (OSError, ValueError) as error:  # pyarrow's errors derive from these
            raise InputError(f"{path} is not a readable Parquet file; {TOKENIZE_AGAIN}") from error

    def names(self, row_group: int) -> list[SampleName]:
        """Ids and keys of a batch, without its tokens. Raises InputError where they cannot be read."""
        table = self._read(row_group, ["sample_id", "key"])
        ids, keys = table["sample_id"].to_pylist(), table["key"].to_pylist()
        return [SampleName(*row) for row in zip(ids, keys, strict=True)]

    def lengths(self, row_group: int) -> dict[str, int]:
        """Tokens of the samples of a batch, by key. Raises InputError where they cannot be read."""
        table = self._read(row_group, ["key", "tokens"])
        return dict(zip(table["key"].to_pylist(), table["tokens"].to_pylist(), strict=True))

    def samples(self, row_group: int) -> list[Sample]:
        """The samples of a batch. Raises InputError where a sample's tokens are not those of its key: the key
        is what the store, shared by all runs, holds states by."""
        table = self._read(row_group, ["sample_id", "key", "input_ids", "loss_mask"])
        masks = _pieces(table["loss_mask"], np.dtype(np.uint8))
        return [
            Sample(name, key, tuple(ids.tolist()), tuple(mask.tolist()))
            for (name, key, ids), mask in zip(self._with_proven_keys(table), masks, strict=True)
        ]

    def check_keys(self, row_group: int) -> None:
        """Raises InputError as `samples` does."""
        for _ in self._with_proven_keys(self._read(row_group, ["sample_id", "key", "input_ids"])):
            pass

    def _with_proven_keys(self, table: pa.Table) -> Iterator[tuple[str, str, np.ndarray]]:
        names, keys = table["sample_id"].to_pylist(), table["key"].to_pylist()
        for name, key, ids in zip(names, keys, _pieces(table["input_ids"], TOKEN_IDS), strict=True):
            if hash_bytes(ids.tobytes()) != key:
                raise InputError(
                    f"{self._path}: the tokens of sample {name} are not those of its key {key}, so the file"
                    f" has been changed since tokenization; {TOKENIZE_AGAIN}"
                )
            yield name, key, ids

    def _read(self, row_group: int, columns: list[str]) -> pa.Table:
        if not 0 <= row_group < self._file.num_row_groups:
            raise InputError(
                f"{self._path} has {self._file.num_row_groups} row groups, and batches.json beside it names"
                f" number {row_group}; delete both and run the same command again, which tokenizes again"
            )
        try:
            table = self._file.read_row_group(row_group, columns=columns)
            if missing := set(columns) - set(table.column_names):
                raise KeyError(*missing)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(
                f"row group {row_group} of {self._path} cannot be read; {TOKENIZE_AGAIN}"
            ) from error
        return table

    def all_names(self, without: Collection[str] = ()) -> Iterator[SampleName]:
        """Names in training order but for the keys of `without`, one batch in memory."""
        for row_group in range(self._file.num_row_groups):
            yield from (name for name in self.names(row_group) if name.key not in without)

    def all_ids(self) -> Iterator[tuple[str, np.ndarray]]:
        """Key and token ids [T] int32 of each sample in training order, one batch in memory."""
        for row_group in range(self._file.num_row_groups):
            table = self._read(row_group, ["key", "input_ids"])
            yield from zip(table["key"].to_pylist(), _pieces(table["input_ids"], TOKEN_IDS), strict=True)

    def all_samples(self, without: Collection[str] = ()) -> Iterator[Sample]:
        """Samples in training order but for the keys of `without`, one batch in memory."""
        for row_group in range(self._file.num_row_groups):
            yield from (sample for sample in self.samples(row_group) if sample.key not in without)


def _pieces(column: pa.ChunkedArray, dtype: np.dtype[Any]) -> Iterator[np.ndarray]:
    """The values of each row of a column of lists, as arrays of `dtype`; nothing is copied where the column
    has that type already."""
    for chunk in column.chunks:
        values = chunk.values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
        offsets = chunk.offsets.to_numpy()
        yield from (values[start:end] for start, end in pairwise(offsets))
