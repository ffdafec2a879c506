"""Converts a training set to a format in which every row is a file with its own copy of the states.

Rows are converted in parallel, in chunks; no process holds more than one row's states. A chunk counts once
its files are forced to the disk and a line in the journal says so, with their sizes and checksums. So a
conversion that was killed goes on with the other chunks, and its result is the same, byte for byte.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.assembly.layout import FILES_TABLE
from eagle3_data.assembly.reader import TrainingRow, TrainingSet
from eagle3_data.errors import Eagle3DataError, StorageError
from eagle3_data.log import say
from eagle3_data.progress import Progress
from eagle3_data.records.checksum import file_checksum
from eagle3_data.text import counted

CHUNK_ROWS = 32
ROWS_A_GROUP = 10_000
"""Of the table of files."""
CHUNKS_AHEAD = 3
ROWS_A_FOLDER = 2000
FILE_OVERHEAD_BYTES = 4096
"""Of a file that torch.save writes, and of its last block."""
Item = TypeVar("Item")
TABLE = pa.schema([("name", pa.string()), ("size_bytes", pa.int64()), ("xxh3_128", pa.string())])


class Format(Protocol):
    """A format of one file a row; pickled to the worker processes."""

    name: str
    suffix: str

    def contents(self, row: TrainingRow, sample_id: str) -> dict[str, Any]:
        """What torch.save writes for a row."""

    def open(self) -> None:
        """Called once in each worker process."""


@dataclass(frozen=True)
class RowFile:
    """A file that was written, by its name below the format's folder."""

    name: str
    size_bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class Conversion:
    """Of the set in `source`, to the folder `directory`; `sample_ids` and `train_rows` are the set's."""

    source: Path
    directory: Path
    form: Format
    train_rows: int

    def file_name(self, row: int, rows: int) -> str:
        """Numbers are padded: trainers sort names as text. Training and validation rows have folders of their
        own, since these trainers split by folder or not at all."""
        side, first = ("train", 0) if row < self.train_rows else ("validation", self.train_rows)
        digits = len(str(max(rows, ROWS_A_FOLDER)))
        start = (row - first) // ROWS_A_FOLDER * ROWS_A_FOLDER
        folder = f"rows_{start:0{digits}d}-{start + ROWS_A_FOLDER:0{digits}d}"
        return f"{side}/{folder}/data_{row:0{digits}d}{self.form.suffix}"


def size_of_conversion(rows: int, tokens: int, layers: int, hidden_size: int, item_bytes: int) -> int:
    """Bytes that a conversion writes: states, ids and mask, and what torch.save adds to each file."""
    return tokens * (layers * hidden_size * item_bytes + 16) + rows * FILE_OVERHEAD_BYTES


def require_room(directory: Path, needed: dict[str, int]) -> None:
    """Announce what will be written below `directory`, in bytes by its purpose. Raises StorageError where
    there is less room."""
    free = shutil.disk_usage(directory).free
    for purpose, size in needed.items():
        say(f"{purpose}: {size / 2**30:,.2f} GiB to be written, {free / 2**30:,.2f} GiB free in {directory}")
    if sum(needed.values()) > free:
        raise StorageError(
            f"{' and '.join(needed)} take {sum(needed.values()) / 2**30:,.2f} GiB, and {directory} has"
            f" {free / 2**30:,.2f} GiB free; make room, or take a format out of training_set.formats"
        )


def convert(work: Conversion, sample_ids: Iterable[str], rows: int, processes: int) -> None:
    """Write one file for each of `rows` rows, whose names are `sample_ids`, and the table of them. Raises
    Eagle3DataError where a worker died."""
    work.directory.mkdir(exist_ok=True)
    journal = Journal(journal_of(work.directory))
    if journal.rows:
        say(
            f"{work.form.name}: goes on where an earlier call ended, {counted(journal.rows, 'row')} are there"
        )
    waiting = (chunk for chunk in _chunks(sample_ids) if chunk.first not in journal.starts)
    with journal, Progress(work.form.name, "rows", rows - journal.rows) as progress:
        for first, files in _in_processes(work, waiting, rows, processes):
            journal.add(first, files)
            progress.add(len(files))
    _write_table(work.directory / FILES_TABLE, journal)


def journal_of(directory: Path) -> Path:
    """Beside the format's folder, while it is being written."""
    return directory.with_name(f".{directory.name}.journal.part")


class Journal:
    """The chunks that are written whole, a line each. A line that was cut by a kill does not count. Of each
    only its place in the file is held in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.starts: dict[int, int] = {}
        self.rows = self.size_bytes = 0
        if path.exists():
            with open(path, "rb") as lines:
                offset = 0
                for line in lines:
                    if entry := _parse(line):
                        self._count(entry[0], offset, entry[1])
                    offset += len(line)

    def _count(self, first: int, offset: int, files: list[RowFile]) -> None:
        self.starts[first] = offset
        self.rows += len(files)
        self.size_bytes += sum(file.size_bytes for file in files)

    def __enter__(self) -> None:
        self._lines = open(self._path, "ab")
        if self._lines.tell():
            self._lines.write(b"\n")  # behind a line that was cut

    def add(self, first: int, files: list[RowFile]) -> None:
        self._count(first, self._lines.tell(), files)
        facts = [[file.name, file.size_bytes, file.xxh3_128] for file in files]
        self._lines.write(json.dumps([first, facts]).encode() + b"\n")
        self._lines.flush()
        os.fsync(self._lines.fileno())

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def __iter__(self) -> Iterator[list[RowFile]]:
        """The files of each chunk, in the order of their rows."""
        with open(self._path, "rb") as lines:
            for first in sorted(self.starts):
                lines.seek(self.starts[first])
                if entry := _parse(lines.readline()):
                    yield entry[1]


def _parse(line: bytes) -> tuple[int, list[RowFile]] | None:
    try:
        first, facts = json.loads(line)
        return first, [RowFile(*fact) for fact in facts]
    except (ValueError, TypeError):
        return None


def _write_table(path: Path, journal: Journal) -> None:
    with pq.ParquetWriter(path, TABLE, compression="zstd") as writer:
        for files in batched(chain.from_iterable(journal), ROWS_A_GROUP):
            rows = [(file.name, file.size_bytes, file.xxh3_128) for file in files]
            columns = [pa.array([row[n] for row in rows], field.type) for n, field in enumerate(TABLE)]
            writer.write_table(pa.table(columns, schema=TABLE))


@dataclass(frozen=True)
class _Chunk:
    first: int
    sample_ids: tuple[str, ...]


def _chunks(sample_ids: Iterable[str]) -> Iterator[_Chunk]:
    for number, names in enumerate(batched(sample_ids, CHUNK_ROWS)):
        yield _Chunk(number * CHUNK_ROWS, names)


def batched(items: Iterable[Item], size: int) -> Iterator[tuple[Item, ...]]:
    """`itertools.batched`, which comes with Python 3.12."""
    iterator = iter(items)
    while batch := tuple(islice(iterator, size)):
        yield batch


# ---- in other processes


def _in_processes(
    work: Conversion, chunks: Iterator[_Chunk], rows: int, processes: int
) -> Iterator[tuple[int, list[RowFile]]]:
    """Each chunk's first row and files, as they come. Workers are spawned, since torch's threads do not
    survive a fork."""
    pool = ProcessPoolExecutor(
        min(processes, -(-rows // CHUNK_ROWS)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(work, rows, os.getpid()),
    )
    under_way: set[Future[tuple[int, list[RowFile]]]] = set()
    try:
        for chunk in chunks:
            under_way.add(pool.submit(_convert_chunk, chunk))
            if len(under_way) >= processes * CHUNKS_AHEAD:
                finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in finished)
        for future in under_way:
            yield future.result()
    except BrokenProcessPool as error:
        raise Eagle3DataError(
            f"{work.form.name}: a converting process was killed, probably out of memory; run the same command"
            " again, with more memory or fewer threads: it goes on where this call ended"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@dataclass
class _Worker:
    work: Conversion
    rows: int
    source: TrainingSet


_of_this_worker: list[_Worker] = []


def _start_worker(work: Conversion, rows: int, parent: int) -> None:
    """Leave Ctrl-C to the parent, and end with it even if it is killed."""
    import torch

    from eagle3_data.system.child import die_with_parent

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    torch.set_num_threads(1)
    work.form.open()
    _of_this_worker.append(_Worker(work, rows, TrainingSet(work.source)))


def _convert_chunk(chunk: _Chunk) -> tuple[int, list[RowFile]]:
    import torch

    worker = _of_this_worker[-1]
    files = []
    for row, sample_id in enumerate(chunk.sample_ids, chunk.first):
        name = worker.work.file_name(row, worker.rows)
        path = worker.work.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # torch.save names what is in the file after the file: the same name always, so equal bytes
        part = path.with_name(f"{path.stem}.part")
        torch.save(worker.work.form.contents(worker.source[row], sample_id), part)
        files.append(RowFile(name, part.stat().st_size, file_checksum(part)))
        os.replace(part, path)
    for file in files:
        with open(worker.work.directory / file.name, "rb") as written:
            os.fsync(written.fileno())
    return chunk.first, files
