"""Reading sources row by row: whatever their size, never as a whole in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

from eagle3_data.config import Data, Source
from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes
from eagle3_data.tokenization.reading.rows import Row

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
COMPRESSED_ENDINGS = (".gz", ".zst")


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


def _reader(number: int, source: Source) -> Iterator[Row]:
    from eagle3_data.tokenization.reading.json_rows import read_json_rows
    from eagle3_data.tokenization.reading.table_rows import read_dataset, read_parquet

    path = Path(source.path)
    if source.path.startswith("hub:") or path.is_dir():
        return read_dataset(number, source)
    if not path.is_file():
        raise InputError(
            f"data.sources[{number}]: there is no file {path}; correct the path, which is relative to the"
            " working directory"
        )
    endings = [ending.lower() for ending in path.suffixes]
    if endings[-1:] == [".parquet"]:
        return read_parquet(number, source)
    compression = endings.pop()[1:] if endings[-1:] and endings[-1] in COMPRESSED_ENDINGS else None
    if endings[-1:] and endings[-1] not in JSON_ENDINGS:
        known = ", ".join((*JSON_ENDINGS, ".parquet"))
        raise InputError(
            f"data.sources[{number}]: {path} has an ending that is not known; known are {known}, and"
            f" {' and '.join(COMPRESSED_ENDINGS)} behind them"
        )
    return read_json_rows(number, path, compression)
