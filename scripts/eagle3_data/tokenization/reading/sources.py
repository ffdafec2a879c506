"""Reading sources row by row: whatever their size, never as a whole in memory."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path

from eagle3_data.config import Data, Source
from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes
from eagle3_data.tokenization.reading.formats import (
    COMPRESSED_ENDINGS,
    CSV_ENDINGS,
    HUB,
    JSON_ENDINGS,
    PARQUET,
    format_of,
    is_known,
)
from eagle3_data.tokenization.reading.rows import Row

HUB_NAME = re.compile(
    r"(?:https?://(?:www\.)?(?:huggingface\.co|hf\.co)/datasets/|hf://datasets/)?([\w.-]+/[\w.-]+)/?"
)


def read_sources(data: Data) -> Iterator[Row]:
    """The rows of all sources in order. Raises InputError naming the source and the place in it where it
    cannot be read on."""
    for number, source in enumerate(data.sources):
        with closing(_reader(number, source)) as rows:  # type: ignore[type-var]
            yield from islice(rows, source.limit)


def is_drawn(source: Source, index: int) -> bool:
    """Whether a row is among the share that the source's `weight` asks for."""
    if source.weight == 1.0:
        return True
    return int(hash_bytes(f"{source.name}:{index}".encode())[:13], 16) < source.weight * 16**13


def files_of(source: Source) -> list[Path]:
    """The files on this machine that a source consists of, in the order of their names; none for a dataset of
    the hub, or if there is nothing there."""
    path = Path(source.path)
    if source.path.startswith(HUB):
        return []
    if path.is_dir():
        return sorted(
            file for file in path.rglob("*") if file.is_file() and not _is_hidden(file.relative_to(path))
        )
    return (
        [path] if path.exists() else [Path(name) for name in sorted(glob.glob(source.path, recursive=True))]
    )


def _reader(number: int, source: Source) -> Iterator[Row]:
    from eagle3_data.tokenization.reading.datasets_rows import read_dataset, split_files

    path = Path(source.path)
    if source.path.startswith(HUB):
        return read_dataset(number, source)
    if path.is_dir():
        files = split_files(number, source)
        return _read_files(number, source, files, path) if files else read_dataset(number, source)
    files = [file for file in files_of(source) if not file.is_dir()]
    if not files:
        raise InputError(f"data.sources[{number}]: there is no file {path}; {_advice(source.path)}")
    if files == [path]:
        return _read_file(number, source, path)
    return _read_files(number, source, files, path.parent)


def _advice(path: str) -> str:
    if found := HUB_NAME.fullmatch(path):
        hub = f"for a dataset of the Hugging Face hub write `path: {HUB}{found[1]}`"
        return f"correct the path, which is relative to the working directory, or {hub}"
    return "correct the path, which is relative to the working directory"


def _read_files(number: int, source: Source, files: list[Path], root: Path) -> Iterator[Row]:
    """The rows of several files, counted through; each row's place begins with its file."""
    index = 0
    for path in files:
        name = path.relative_to(root) if path.is_relative_to(root) else path
        with closing(_read_file(number, source, path)) as rows:  # type: ignore[type-var]
            for row in rows:
                yield replace(row, index=index, place=f"{name}, {row.place}")
                index += 1


def _read_file(number: int, source: Source, path: Path) -> Iterator[Row]:
    from eagle3_data.tokenization.reading.csv_rows import read_csv
    from eagle3_data.tokenization.reading.json_rows import read_json_rows
    from eagle3_data.tokenization.reading.table_rows import read_parquet

    ending, compression = format_of(path)
    if ending == PARQUET:
        return read_parquet(number, path, source.tools_field)
    if ending in CSV_ENDINGS:
        return read_csv(number, path, compression, "\t" if ending == ".tsv" else ",")
    if ending and not is_known(ending):
        known = ", ".join((*JSON_ENDINGS, *CSV_ENDINGS, PARQUET))
        raise InputError(
            f"data.sources[{number}]: {path} has an ending that is not known; known are {known}, and"
            f" {' and '.join(COMPRESSED_ENDINGS)} behind all but the last"
        )
    return read_json_rows(number, path, compression)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "__")) for part in path.parts)
