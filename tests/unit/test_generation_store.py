"""The store of answers: whole or not there, whatever was killed, and the same as it was written."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_data.errors import InputError
from eagle3_data.generation.answers import LENGTH, STOP, Answers, Turn, ends_in_loop
from eagle3_data.generation.store import JOURNAL, GenerationStore
from eagle3_data.system.processes import this_process

ONE = Answers((Turn(0, (1, 2), (3, 4), STOP), Turn(4, (5,), (6,), LENGTH)), "answers-ended")
TWO = Answers((Turn(0, (7,), (8, 9), STOP),))


@pytest.fixture
def store(tmp_path: Path) -> GenerationStore:
    store = GenerationStore(tmp_path / "store", "id")
    store.prepare()
    return store


def write(store: GenerationStore, writer: str, **answers: Answers) -> Path:
    journal = store.open_journal(writer, this_process())
    for key, one in answers.items():
        journal.add(key, one)
    journal.close()
    return journal.path


def found(store: GenerationStore, *keys: str) -> list[Answers | None]:
    reader = store.reader()
    return [reader.find(key) for key in keys]


def test_answers_come_back_as_they_were_committed(store: GenerationStore) -> None:
    journal = write(store, "first", a=ONE, b=TWO)
    assert store.keys() == {"a", "b"}
    assert found(store, "a", "b", "c") == [ONE, TWO, None]
    store.seal(journal)
    assert not journal.parent.exists()
    assert store.keys() == {"a", "b"}
    assert found(store, "b", "a", "c") == [TWO, ONE, None]


def test_a_torn_line_is_no_answer_and_harms_no_other(store: GenerationStore) -> None:
    journal = write(store, "first", a=ONE, b=TWO)
    whole = journal.read_bytes()
    for length in range(len(whole)):
        journal.write_bytes(whole[:length])
        assert found(store, "a", "b") == [
            ONE if length >= whole.index(b"\n") + 1 else None,
            None,
        ]
    journal.write_bytes(whole[:-1] + b"?\n")
    assert found(store, "a", "b") == [ONE, None]
    store.seal(journal)
    assert store.keys() == {"a"}


def test_of_two_answers_to_one_question_the_first_shard_counts_always(store: GenerationStore) -> None:
    store.seal(write(store, "second", a=TWO))
    store.seal(write(store, "first", a=ONE))
    write(store, "zero", a=replace(TWO, ending="no-room"))
    assert found(store, "a") == [ONE]


def test_the_journal_of_a_killed_writer_becomes_a_shard_and_that_of_a_living_one_stays(
    store: GenerationStore,
) -> None:
    mine = write(store, "mine", a=ONE)
    script = f"""
import os, signal
from eagle3_data.generation.answers import STOP, Answers, Turn
from eagle3_data.generation.store import GenerationStore
from eagle3_data.system.processes import this_process
journal = GenerationStore({str(store.directory.parent)!r}, "id").open_journal("killed", this_process())
journal.add("b", Answers((Turn(0, (7,), (8, 9), STOP),)))
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", script], env=environment, check=False).returncode == -9
    assert found(store, "a", "b") == [ONE, TWO]
    assert store.seal_abandoned() == 1
    assert mine.exists()
    assert not (store.directory / "incoming/killed").exists()
    assert [path.name for path in (store.directory / "shards").iterdir()] == ["killed.parquet"]
    assert found(store, "a", "b") == [ONE, TWO]


def test_a_line_that_found_no_room_is_taken_back(
    store: GenerationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = store.open_journal("first", this_process())
    journal.add("a", ONE)

    class Full:
        def __init__(self, file):
            self._file = file

        def write(self, data: bytes) -> int:
            self._file.write(data[:5])
            raise OSError(28, "No space left on device")

        def __getattr__(self, name: str):
            return getattr(self._file, name)

    whole = journal._file
    journal._file = Full(whole)
    with pytest.raises(OSError):
        journal.add("b", TWO)
    journal._file = whole
    journal.add("c", TWO)
    journal.close()
    assert found(store, "a", "b", "c") == [ONE, None, TWO]
    assert journal.path.name == JOURNAL


def test_a_damaged_shard_is_named(store: GenerationStore) -> None:
    store.seal(write(store, "first", a=ONE))
    shard = store.directory / "shards/first.parquet"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(InputError, match=r"first\.parquet cannot be read; delete it"):
        store.keys()


@pytest.mark.parametrize(
    ("ids", "loops"),
    [
        ([1] * 33, True),
        ([1] * 32, False),
        (list(range(50)) + [1, 2, 3] * 12, True),
        (list(range(100)), False),
        (list(range(40)) * 4, True),
        (list(range(40)) * 3 + list(range(1, 41)), False),
        (list(range(65)) * 9, False),
    ],
)
def test_what_counts_as_a_loop(ids: list[int], loops: bool) -> None:
    assert ends_in_loop(ids) is loops
