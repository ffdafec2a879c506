"""The store: a sample is there when both files are, and never half."""

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_data import PACKAGE_ROOT
from eagle3_data.errors import InputError, StorageError
from eagle3_data.records import find_json, read_json, write_json
from eagle3_data.store import ABANDONED_S, Store, check_root
from eagle3_data.system.processes import this_process

KEY = "ab" + 30 * "0"
SIDECAR = {"tokens": 1, "size_bytes": 6, "xxh3_128": "x"}
ELSEWHERE = replace(this_process(), kernel="another machine's")


def committed(root: Path) -> Store:
    store = Store(root, "id")
    states = store.open_incoming("w", this_process()) / "x"
    states.write_bytes(b"states")
    store.commit(KEY, states, {**SIDECAR, "greedy_token": 7})
    return store


def test_a_committed_sample_is_held_and_listed(tmp_path: Path) -> None:
    store = committed(tmp_path)
    assert store.holds(KEY)
    assert store.keys() == {KEY}
    assert store.read_sidecar(KEY).greedy_token == 7
    assert store.states_path(KEY) == tmp_path / "id/ab" / f"{KEY}.safetensors"


def test_the_first_writer_of_a_key_wins_and_the_sidecar_stays_its(tmp_path: Path) -> None:
    store = committed(tmp_path)
    late = store.open_incoming("late", this_process()) / "x"
    late.write_bytes(b"other states")
    assert not store.commit(KEY, late, {**SIDECAR, "greedy_token": 8})
    assert store.states_path(KEY).read_bytes() == b"states"
    assert store.read_sidecar(KEY).greedy_token == 7
    assert not late.exists()


def test_a_writer_killed_between_sidecar_and_rename_leaves_no_sample_and_a_later_one_commits(
    tmp_path: Path,
) -> None:
    program = f"""
import os, signal, sys
from pathlib import Path
from eagle3_data.system.processes import this_process
from eagle3_data.store import ABANDONED_S, Store
replace = os.replace
os.replace = lambda source, target: os.kill(os.getpid(), signal.SIGKILL) if str(target).endswith(".safetensors") else replace(source, target)
store = Store({str(tmp_path)!r}, "id")
states = store.open_incoming("killed", this_process()) / "x"
states.write_bytes(b"states of the killed one")
store.commit({KEY!r}, states, {{"greedy_token": 6}})
"""
    killed = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": PACKAGE_ROOT}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    store = Store(tmp_path, "id")
    assert store.sidecar_path(KEY).exists()
    assert not store.holds(KEY)
    committed(tmp_path)
    assert store.states_path(KEY).read_bytes() == b"states"
    assert store.read_sidecar(KEY).greedy_token == 7
    assert store.clean_incoming() == 1, "the killed writer's folder, not the living one's"
    assert [path.name for path in (tmp_path / "id/incoming").iterdir()] == ["w"]


def make_old(*paths: Path, age_s: float = ABANDONED_S + 5) -> None:
    for path in paths:
        os.utime(path, (time.time() - age_s,) * 2)


def test_a_writer_of_another_machine_is_gone_once_it_has_been_silent_for_long(tmp_path: Path) -> None:
    store = Store(tmp_path, "id")
    silent, renewing, writing = (
        store.open_incoming(name, ELSEWHERE) for name in ("silent", "renewing", "writing")
    )
    (renewing / "x").touch()
    make_old(
        *(directory / "owner.json" for directory in (silent, renewing, writing)),
        renewing / "x",
        silent,
        renewing,
        writing,
    )
    os.utime(renewing / "owner.json")
    (writing / "canary").mkdir()
    make_old(writing)
    assert store.clean_incoming() == 1
    assert sorted(path.name for path in silent.parent.iterdir()) == ["renewing", "writing"]


def test_a_living_writer_of_this_machine_keeps_its_folder_however_long_it_stood_still(tmp_path: Path) -> None:
    store = Store(tmp_path, "id")
    stopped = store.open_incoming("stopped", this_process())
    make_old(stopped / "owner.json", stopped)
    assert store.clean_incoming() == 0


def test_a_folder_without_an_owner_goes_when_it_is_old(tmp_path: Path) -> None:
    store = Store(tmp_path, "id")
    old, young = (store.directory / "incoming" / name for name in ("old", "young"))
    old.mkdir(parents=True), young.mkdir()
    make_old(old)
    assert store.clean_incoming() == 1
    assert (old.exists(), young.exists()) == (False, True)


def test_age_is_by_the_clock_of_the_file_system_not_by_this_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path, "id")
    living = store.open_incoming("living", ELSEWHERE)
    monkeypatch.setattr(time, "time", lambda: 1e12)
    assert store.clean_incoming() == 0
    assert living.exists()


def test_no_unfinished_file_is_ever_among_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    move = os.replace
    monkeypatch.setattr(
        os, "replace", lambda source, target: (moved.append(str(source)), move(source, target))[1]
    )
    committed(tmp_path)
    assert len(moved) == 4 and all("/id/incoming/w/" in source for source in moved)


@pytest.mark.parametrize("gone", ["states_path", "sidecar_path"])
def test_half_a_sample_does_not_exist(tmp_path: Path, gone: str) -> None:
    store = committed(tmp_path)
    getattr(store, gone)(KEY).unlink()
    assert not store.holds(KEY)
    assert store.keys() == set()


def test_an_empty_store_has_no_keys_and_makes_no_folder(tmp_path: Path) -> None:
    assert Store(tmp_path / "none", "id").keys() == set()
    assert not (tmp_path / "none").exists()


def test_a_quarantined_sample_is_kept_aside_with_the_reason(tmp_path: Path) -> None:
    store = committed(tmp_path)
    store.quarantine(KEY, "all-zero")
    assert not store.holds(KEY)
    kept = sorted(path.suffix for path in (store.directory / "quarantine").iterdir())
    assert kept == [".json", ".json", ".safetensors"]


def test_a_record_is_replaced_whole_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "deep/record.json"
    write_json(path, {"b": 1, "a": "ü"})
    assert read_json(path) == {"a": "ü", "b": 1, "format_version": 1}
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]
    path.write_text('{"a": ')
    assert find_json(path) is None
    with pytest.raises(InputError, match=r"record\.json cannot be read"):
        read_json(path)
    path.write_text('{"format_version": 99}')
    with pytest.raises(InputError, match="does not have format version"):
        read_json(path)


def test_two_writers_of_one_record_with_the_same_process_number_do_not_take_each_others_unfinished_file(
    tmp_path: Path,
) -> None:
    """Two nodes or containers may have the same process number; two threads always do."""
    path = tmp_path / "record.json"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_json(path, {"number": number}), range(400)))
    assert read_json(path)["number"] in range(400)
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]


# ---- places where no store can be


@pytest.mark.parametrize("store", ["file", "file/below", "/dev/null"])
def test_a_store_that_cannot_be_is_said_in_one_line(tmp_path: Path, store: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        StorageError, match="is a file where a directory is needed; move it away, or set extr"
    ):
        check_root(tmp_path / store)
    with pytest.raises(StorageError, match="is a file where a directory is needed"):
        Store(tmp_path / store, "id").prepare()


@pytest.mark.parametrize("shelf", ["ab", "incoming"])
def test_a_file_in_place_of_a_directory_is_named(tmp_path: Path, shelf: str) -> None:
    store = Store(tmp_path, "id")
    store.directory.mkdir()
    (store.directory / shelf).write_text("")
    with pytest.raises(StorageError, match=rf"id/{shelf} is a file where a directory is needed"):
        store.prepare()


def test_a_store_that_is_mounted_read_only_is_read_and_said_not_to_be_written(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    try:
        store = committed(tmp_path)
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path)], check=True)
        check_root(tmp_path)
        store.check_readable()
        with store.in_use():
            assert store.keys() == {KEY}
        with pytest.raises(StorageError, match="is on a read-only file system; mount it wr"):
            store.prepare()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_full_disk_does_not_forbid_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stops by itself, with a ledger that says so."""

    def full(**arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    Store(tmp_path, "id").prepare()


@pytest.mark.parametrize("left", ["states_path", "sidecar_path"])
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_left_of_a_damaged_sample_does_not_keep_it_from_being_committed(
    tmp_path: Path, left: str, make: Callable[[Path], None]
) -> None:
    store = committed(tmp_path)
    store.states_path(KEY).unlink(), store.sidecar_path(KEY).unlink()
    make(getattr(store, left)(KEY))
    store.check_readable()
    assert store.keys() == set()
    committed(tmp_path)
    assert store.states_path(KEY).read_bytes() == b"states" and store.read_sidecar(KEY).greedy_token == 7
