"""Reading tokenized samples: `tokens/samples.parquet`, one row group a batch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from eagle3_data.batch_index import SampleName
from eagle3_data.errors import InputError


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
        try:
            self._file = pq.ParquetFile(path)
        except (OSError, ValueError) as error:  # pyarrow's errors derive from these
            raise InputError(
                f"{path} is not a readable Parquet file; delete it and run the same command again"
            ) from error

    def names(self, row_group: int) -> list[SampleName]:
        """Ids and keys of a batch, without its tokens."""
        table = self._file.read_row_group(row_group, columns=["sample_id", "key"])
        return [
            SampleName(*row)
            for row in zip(table["sample_id"].to_pylist(), table["key"].to_pylist(), strict=True)
        ]

    def samples(self, row_group: int) -> list[Sample]:
        table = self._file.read_row_group(row_group, columns=["sample_id", "key", "input_ids", "loss_mask"])
        columns = (table[name].to_pylist() for name in ("sample_id", "key", "input_ids", "loss_mask"))
        return [
            Sample(sample_id, key, tuple(ids), tuple(mask))
            for sample_id, key, ids, mask in zip(*columns, strict=True)
        ]

    def all_names(self, without: Collection[str] = ()) -> Iterator[SampleName]:
        """Names in training order but for the keys of `without`, one batch in memory."""
        for row_group in range(self._file.num_row_groups):
            yield from (name for name in self.names(row_group) if name.key not in without)

    def all_samples(self, without: Collection[str] = ()) -> Iterator[Sample]:
        """Samples in training order but for the keys of `without`, one batch in memory."""
        for row_group in range(self._file.num_row_groups):
            yield from (sample for sample in self.samples(row_group) if sample.key not in without)
