"""The content-addressed store of answers: `<root>/<generation id>/`.

A pass appends what comes back to its own journal, `incoming/<writer>/answers.jsonl`, one checked line a
conversation: what is committed survives a kill -9 of anything, and a torn line is no line. At its end, and at
the start of the next pass for one that was killed, the journal becomes a shard, `shards/<writer>.parquet`. A
reader takes both; where a conversation is in two, the first by name counts. What was answered is never
changed.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.errors import InputError, StorageError
from eagle3_data.generation.answers import Answers, Turn
from eagle3_data.hashing import hash_bytes
from eagle3_data.records import JsonObject, find_json
from eagle3_data.store import Store
from eagle3_data.system.places import check_directory
from eagle3_data.system.processes import Process

SETTING = "generation.store"
JOURNAL = "answers.jsonl"
ROWS = 256
"""Conversations in a row group of a shard."""
HELD_GROUPS = 8
"""Row groups that a reader keeps: answers come in about the order in which they are asked for."""
SYNC_S = 1.0
"""How much of what is committed a power failure may cost; a killed process costs nothing."""
IDS = pa.list_(pa.int32())
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        (
            "turns",
            pa.list_(
                pa.struct([("kept", pa.int32()), ("added", IDS), ("answer", IDS), ("finish", pa.string())])
            ),
        ),
        ("ending", pa.string()),
    ]
)
"""Columns of a shard; of a turn, see `eagle3_data.generation.answers.Turn`."""


class GenerationStore:
    """The answers under one generation id. Creating it touches nothing on the disk."""

    def __init__(self, root: str | os.PathLike[str], generation_id: str) -> None:
        self._place = Store(root, generation_id)
        self.directory = self._place.directory
        self._shards = self.directory / "shards"

    def prepare(self) -> None:
        """Make the store's directories and see that they can be written. Raises StorageError."""
        self._shards.mkdir(parents=True, exist_ok=True)
        for directory in (self.directory, self._shards):
            check_directory(directory, writable=True, setting=SETTING)

    def identity(self) -> JsonObject:
        """What a pass has recorded of how the target answers; empty if no pass was needed."""
        return find_json(self.directory / "identity.json") or {}

    def in_use(self, stop: threading.Event) -> AbstractContextManager[None]:
        return self._place.in_use(stop)

    def open_journal(self, writer: str, owner: Process) -> Journal:
        return Journal(self._place.open_incoming(writer, owner) / JOURNAL)

    def seal(self, journal: Path) -> None:
        """Make a shard of a journal whose writer has ended, and remove its directory. Raises OSError; then
        the journal is as it was."""
        part = journal.with_suffix(".part")
        try:
            rows = _write_shard(_lines(journal), part)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        if rows:
            shard = self._shards / f"{journal.parent.name}.parquet"
            if shard.exists():  # of a process of the same name and number
                shard = self._shards / f"{journal.parent.name}.{time.time_ns()}.parquet"
            with open(part, "rb") as file:
                os.fsync(file.fileno())
            os.replace(part, shard)
        shutil.rmtree(journal.parent, ignore_errors=True)

    def seal_abandoned(self) -> int:
        """The same for the journals of writers that are gone; returns how many."""
        abandoned = self._place.abandoned()
        for directory in abandoned:
            self.seal(directory / JOURNAL)
        return len(abandoned)

    def keys(self) -> set[str]:
        """The keys of all conversations that are answered. Raises StorageError, InputError."""
        return set(self._index())

    def reader(self) -> AnswerReader:
        return AnswerReader(self._index())

    def _index(self) -> dict[str, tuple[Path, int]]:
        """By key, the file and the row group, or the byte of the line, that holds its answers. Journals are
        looked at first: one that becomes a shard meanwhile is then found as one of both."""
        found: dict[str, tuple[Path, int]] = {}
        journals = sorted(self.directory.glob(f"incoming/*/{JOURNAL}"))
        in_journals = [(path, list(_places(path))) for path in journals]
        for path in sorted(self._shards.glob("*.parquet")):
            for group, keys in enumerate(_keys(path)):
                for key in keys:
                    found.setdefault(key, (path, group))
        for path, places in in_journals:
            for key, at in places:
                found.setdefault(key, (path, at))
        return found


class AnswerReader:
    """Looks answers up."""

    def __init__(self, index: dict[str, tuple[Path, int]]) -> None:
        self._index = index
        self._held: OrderedDict[tuple[Path, int], dict[str, Answers]] = OrderedDict()

    def find(self, key: str) -> Answers | None:
        """None where nothing is answered. Raises InputError."""
        place = self._index.get(key)
        if place is None:
            return None
        path, at = place
        if path.suffix != ".parquet":
            return next((answers for found, answers in _lines(path, at) if found == key), None)
        if place not in self._held:
            self._held[place] = _group(path, at)
            if len(self._held) > HELD_GROUPS:
                self._held.popitem(last=False)
        self._held.move_to_end(place)
        return self._held[place].get(key)


class Journal:
    """The answers of one pass, as they come. Safe to use from several threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115  open as long as the pass runs
        self._lock = threading.Lock()
        self._synced_at = 0.0

    def add(self, key: str, answers: Answers) -> int:
        """Keep the answers; returns the size of the line in bytes. Raises OSError, then nothing is kept."""
        line = _line(key, answers)
        with self._lock:
            start = self._file.seek(0, os.SEEK_END)
            try:
                written = self._file.write(line)
                if written != len(line):  # a full disk may take a part
                    self._file.write(line[written:])
            except OSError:
                self._file.truncate(start)
                raise
            if time.monotonic() - self._synced_at > SYNC_S:
                os.fdatasync(self._file.fileno())
                self._synced_at = time.monotonic()
        return len(line)

    def close(self) -> None:
        os.fdatasync(self._file.fileno())
        self._file.close()


def _line(key: str, answers: Answers) -> bytes:
    turns = [[turn.kept, turn.added, turn.answer, turn.finish] for turn in answers.turns]
    text = json.dumps([key, turns, answers.ending], separators=(",", ":")).encode()
    return hash_bytes(text).encode() + b" " + text + b"\n"


def _checked(line: bytes) -> list[Any] | None:
    """What a line of a journal says, None where it is torn."""
    checksum, _, text = line.rstrip(b"\n").partition(b" ")
    if not line.endswith(b"\n") or hash_bytes(text).encode() != checksum:
        return None
    value: list[Any] = json.loads(text)
    return value


def _places(journal: Path) -> Iterator[tuple[str, int]]:
    """The key of each whole line, and the byte where it begins."""
    at = 0
    try:
        with open(journal, "rb") as file:
            for line in file:
                if (value := _checked(line)) is not None:
                    yield value[0], at
                at += len(line)
    except FileNotFoundError:  # it has just become a shard
        return


def _lines(journal: Path, start: int = 0) -> Iterator[tuple[str, Answers]]:
    if not journal.exists():
        return
    with open(journal, "rb") as file:
        file.seek(start)
        for line in file:
            if (value := _checked(line)) is not None:
                key, turns, ending = value
                made = (
                    Turn(kept, tuple(added), tuple(answer), finish) for kept, added, answer, finish in turns
                )
                yield key, Answers(tuple(made), ending)


def _write_shard(answers: Iterable[tuple[str, Answers]], path: Path) -> int:
    """Returns how many conversations there are."""
    rows = 0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        lines = iter(answers)
        while group := [_row(key, one) for key, one in islice(lines, ROWS)]:
            writer.write_table(pa.Table.from_pylist(group, schema=SCHEMA))
            rows += len(group)
    return rows


def _row(key: str, answers: Answers) -> dict[str, Any]:
    turns = [
        {"kept": turn.kept, "added": list(turn.added), "answer": list(turn.answer), "finish": turn.finish}
        for turn in answers.turns
    ]
    return {"key": key, "turns": turns, "ending": answers.ending}


def _keys(shard: Path) -> Iterator[list[str]]:
    """The keys of each row group."""
    try:
        file = pq.ParquetFile(shard)
        for group in range(file.num_row_groups):
            yield file.read_row_group(group, columns=["key"])["key"].to_pylist()
    except PermissionError:
        raise StorageError(f"{shard}: permission denied; have its owner call `chmod g+r`") from None
    except (OSError, ValueError, KeyError) as error:
        raise InputError(_damaged(shard)) from error


def _group(shard: Path, group: int) -> dict[str, Answers]:
    try:
        rows = pq.ParquetFile(shard).read_row_group(group).to_pylist()
    except (OSError, ValueError) as error:
        raise InputError(_damaged(shard)) from error
    return {
        row["key"]: Answers(
            tuple(
                Turn(turn["kept"], tuple(turn["added"]), tuple(turn["answer"]), turn["finish"])
                for turn in row["turns"]
            ),
            row["ending"],
        )
        for row in rows
    }


def _damaged(shard: Path) -> str:
    return f"{shard} cannot be read; delete it and run the same command again, which generates them again"
