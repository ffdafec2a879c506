"""Rows of Arrow tables: Parquet files, and directories or hub datasets that the `datasets` library loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3_data.config import Source
from eagle3_data.errors import InputError
from eagle3_data.tokenization.rows import Row

ROWS_AT_ONCE = 256
OPEN_FIELDS = ("arguments", "parameters", "tools")
"""Fields whose content has no fixed columns. Arrow gives every row the columns of all rows, filled with null."""


def read_parquet(number: int, source: Source) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source.path) as file:
            index = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE):
                for value in batch.to_pylist():
                    yield Row(number, index, f"row {index}", value=without_filling(value))
                    index += 1
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{source.path} cannot be read as Parquet; check that it is whole") from error


def read_dataset(number: int, source: Source) -> Iterator[Row]:
    for index, value in enumerate(_load_dataset(number, source)):
        yield Row(number, index, f"row {index}", value=without_filling(value))


def _load_dataset(number: int, source: Source) -> Any:
    """The split of a saved or of a hub dataset, memory-mapped."""
    import datasets

    datasets.disable_progress_bars()
    name = source.path.removeprefix("hub:")
    saved = any((Path(name) / file).exists() for file in ("state.json", "dataset_dict.json"))
    try:
        found = datasets.load_from_disk(name) if saved else datasets.load_dataset(name)
    except Exception as error:
        hint = "check the path" if Path(name).is_dir() else "check the name, the network, and for a gated dataset the token in HF_TOKEN"
        raise InputError(f"data.sources[{number}]: {source.path} cannot be loaded as a dataset; {hint}") from error
    if isinstance(found, datasets.DatasetDict):
        if source.split not in found:
            raise InputError(f"data.sources[{number}]: {source.path} has no split {source.split!r}; it has {', '.join(found)}; set the source's `split`")
        found = found[source.split]
    return found


def without_filling(value: Any, inside: bool = False) -> Any:
    """A row without the nulls that Arrow put where other rows have a tool argument that this one lacks."""
    if isinstance(value, dict):
        return {key: without_filling(item, inside or key in OPEN_FIELDS) for key, item in value.items() if not (inside and item is None)}
    if isinstance(value, list):
        return [without_filling(item, inside) for item in value]
    return value
