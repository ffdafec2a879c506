"""Rows of CSV and TSV files, also compressed: the first line names the fields, all values are text."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from eagle3_data.errors import InputError, headline
from eagle3_data.tokenization.reading.json_rows import open_file
from eagle3_data.tokenization.reading.rows import Row


def read_csv(number: int, path: Path, compression: str | None, delimiter: str) -> Iterator[Row]:
    """The rows of source `number`. Empty values are null. Raises InputError where the file cannot be read
    on."""
    csv.field_size_limit(sys.maxsize)  # a conversation may be long
    reader = None
    try:
        with (
            open_file(path, compression) as file,
            io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="") as text,
        ):
            reader = csv.reader(text, delimiter=delimiter, strict=True)
            names = next(reader, [])
            if len(set(names)) != len(names):
                raise InputError(f"{path}: two columns have the same name: {', '.join(map(repr, names))}")
            index, line = 0, reader.line_num + 1
            for values in reader:
                if values:
                    yield _row(Row(number, index, f"line {line}"), names, values)
                    index += 1
                line = reader.line_num + 1
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num if reader else 1}: no valid CSV ({error}); a quotation mark may"
            " be missing or not doubled, and what follows cannot be read, so repair the file"
        ) from None
    except (OSError, EOFError) as error:
        raise InputError(
            f"{path} cannot be read to its end ({headline(error)}); check its permissions and that it is"
            " whole"
        ) from error


def _row(row: Row, names: list[str], values: list[str]) -> Row:
    if len(values) != len(names):
        fault = f"the row has {len(values)} values, and the first line names {len(names)} fields"
    elif not _is_utf8(values):
        fault = "not UTF-8"
    else:
        value = {name: value or None for name, value in zip(names, values, strict=True)}
        return Row(row.source, row.index, row.place, value=value)
    return Row(row.source, row.index, row.place, fault=fault)


def _is_utf8(values: list[str]) -> bool:
    try:
        for value in values:
            value.encode()
    except UnicodeEncodeError:
        return False
    return True
