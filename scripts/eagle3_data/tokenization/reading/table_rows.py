"""Rows of Arrow tables, as Parquet files and saved datasets hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import InputError, headline
from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.rows import Row

ROWS_AT_ONCE = 256
UNREADABLE = (ValueError, OverflowError, KeyError)
"""What Arrow raises for text that is not UTF-8, for a time that Python cannot hold, and for a key that a map
has twice."""

OPEN_FIELDS = frozenset(("arguments", "parameters", "tools", "functions"))
"""Fields whose content has no fixed columns. Arrow gives every row the columns of all rows, filled with
null."""


def read_parquet(number: int, path: Path, tools_field: str) -> Iterator[Row]:
    """The rows of source `number`. Raises InputError if the file cannot be read."""
    try:
        with pq.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=ROWS_AT_ONCE, columns=columns(file.schema_arrow))
            yield from rows_of(number, batches, tools_field)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} cannot be read as Parquet; check that it is whole") from error


def rows_of(number: int, batches: Iterator[pa.RecordBatch], tools_field: str) -> Iterator[Row]:
    """The rows of a table's batches, without what Arrow filled in."""
    open_fields = OPEN_FIELDS | {tools_field}
    index = 0
    for batch in batches:
        holds_json = any(_holds_json(field.type) for field in batch.schema)
        for value, fault in _values(batch):
            if holds_json and not fault:
                value = {field.name: _decoded(value[field.name], field.type) for field in batch.schema}
            value = without_filling(value, open_fields)
            yield Row(number, index, f"row {index}", value=value, fault=fault)
            index += 1


def columns(schema: pa.Schema) -> list[str]:
    """All columns but times: no turn is one, and Python cannot hold every time that Arrow can."""
    return [field.name for field in schema if not pa.types.is_temporal(field.type)]


def without_filling(value: Any, open_fields: frozenset[str], inside: bool = False) -> Any:
    """A row without the nulls that Arrow put where other rows have a tool argument that this one lacks."""
    if isinstance(value, dict):
        return {
            key: without_filling(item, open_fields, inside or key in open_fields)
            for key, item in value.items()
            if not (inside and item is None)
        }
    if isinstance(value, list):
        return [without_filling(item, open_fields, inside) for item in value]
    return value


def _values(batch: pa.RecordBatch) -> Iterator[tuple[JsonObject, str]]:
    """The rows of a batch, each with an empty text, or with why it cannot be read."""
    try:
        values = batch.to_pylist(maps_as_pydicts="strict")
    except UNREADABLE:
        for index in range(batch.num_rows):
            yield _value(batch, index)
    else:
        yield from ((value, "") for value in values)


def _value(batch: pa.RecordBatch, index: int) -> tuple[JsonObject, str]:
    value = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            value[name] = column[index].as_py(maps_as_pydicts="strict")
        except UNREADABLE as error:
            return {}, f"field {name!r} cannot be read ({headline(error)})"
    return value, ""


def _holds_json(kind: pa.DataType) -> bool:
    """Whether a type has JSON text in it, as the `datasets` library stores what is not of one type."""
    if isinstance(kind, pa.JsonType):
        return True
    return any(_holds_json(kind.field(number).type) for number in range(kind.num_fields))


def _decoded(value: Any, kind: pa.DataType) -> Any:
    """A value with its JSON texts parsed."""
    if value is None or not _holds_json(kind):
        return value
    if isinstance(kind, pa.JsonType):
        return json.loads(value)
    if pa.types.is_struct(kind):
        return {field.name: _decoded(value[field.name], field.type) for field in kind}
    if pa.types.is_map(kind):
        return {key: _decoded(item, kind.item_type) for key, item in value.items()}
    return [_decoded(item, kind.value_type) for item in value]
