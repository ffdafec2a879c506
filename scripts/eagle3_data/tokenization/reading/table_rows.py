"""Rows of Arrow tables: Parquet files, and directories or hub datasets that the `datasets` library loads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.config import Source
from eagle3_data.errors import InputError, headline
from eagle3_data.tokenization.reading.rows import Row

ROWS_AT_ONCE = 256
UNREADABLE = (ValueError, OverflowError)
"""What Arrow raises for text that is not UTF-8, and for a time that Python cannot hold."""

OPEN_FIELDS = ("arguments", "parameters", "tools")
"""Fields whose content has no fixed columns. Arrow gives every row the columns of all rows, filled with
null."""


def read_parquet(number: int, source: Source) -> Iterator[Row]:
    try:
        with pq.ParquetFile(source.path) as file:
            index = 0
            for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=_columns(file.schema_arrow)):
                for value, fault in _values(batch):
                    yield Row(number, index, f"row {index}", value=without_filling(value), fault=fault)
                    index += 1
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{source.path} cannot be read as Parquet; check that it is whole") from error


def read_dataset(number: int, source: Source) -> Iterator[Row]:
    found = _load_dataset(number, source)
    found = found.select_columns(_columns(found.features.arrow_schema))
    rows = iter(found)
    for index in range(len(found)):
        try:
            row = Row(number, index, f"row {index}", value=without_filling(next(rows)))
        except UNREADABLE as error:
            row = Row(number, index, f"row {index}", fault=f"the row cannot be read ({headline(error)})")
            rows = iter(found.select(range(index + 1, len(found))))
        yield row


def _columns(schema: pa.Schema) -> list[str]:
    """All columns but times: no turn is one, and Python cannot hold every time that Arrow can."""
    return [field.name for field in schema if not pa.types.is_temporal(field.type)]


def _values(batch: pa.RecordBatch) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows of a batch, each with an empty text, or with why it cannot be read."""
    try:
        values = batch.to_pylist()
    except UNREADABLE:
        for index in range(batch.num_rows):
            yield _value(batch, index)
    else:
        yield from ((value, "") for value in values)


def _value(batch: pa.RecordBatch, index: int) -> tuple[dict[str, Any], str]:
    value = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            value[name] = column[index].as_py()
        except UNREADABLE as error:
            return {}, f"field {name!r} cannot be read ({headline(error)})"
    return value, ""


def _load_dataset(number: int, source: Source) -> Any:
    """The split of a saved or of a hub dataset, memory-mapped."""
    import datasets

    datasets.disable_progress_bars()
    name = source.path.removeprefix("hub:")
    saved = any((Path(name) / file).exists() for file in ("state.json", "dataset_dict.json"))
    try:
        found = (
            datasets.load_from_disk(name)
            if saved
            else datasets.load_dataset(name, source.config_name or None, revision=source.revision or None)
        )
    except Exception as error:
        hint = (
            "check the path"
            if Path(name).is_dir()
            else (
                "check the name, `config_name` and `revision`, the network, and for a gated dataset the token"
                " in HF_TOKEN"
            )
        )
        raise InputError(
            f"data.sources[{number}]: {source.path} cannot be loaded as a dataset; {hint}"
        ) from error
    if isinstance(found, datasets.DatasetDict):
        if source.split not in found:
            raise InputError(
                f"data.sources[{number}]: {source.path} has no split {source.split!r}; it has"
                f" {', '.join(found)}; set the source's `split`"
            )
        found = found[source.split]
    return found


def without_filling(value: Any, inside: bool = False) -> Any:
    """A row without the nulls that Arrow put where other rows have a tool argument that this one lacks."""
    if isinstance(value, dict):
        return {
            key: without_filling(item, inside or key in OPEN_FIELDS)
            for key, item in value.items()
            if not (inside and item is None)
        }
    if isinstance(value, list):
        return [without_filling(item, inside) for item in value]
    return value
