"""The lease of a pass: it beats, it renews what tells of a writer, and it notices when it is another's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_data.passes import lease
from eagle3_data.passes.lease import Lease, LeaseState, PassProgress
from eagle3_data.records import read_json
from eagle3_data.store import ABANDONED_S
from eagle3_data.system.processes import this_process

BEAT_S = 0.05
PROGRESS = PassProgress(
    number="001", stripe=0, extraction_id="e", phase="loading", started_at=0.0, updated_at=1.0
)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Lease, threading.Event]]:
    """A lease that beats fast, and whether it was found to be lost."""
    monkeypatch.setattr(lease, "BEAT_S", BEAT_S)
    lost = threading.Event()
    mine = Lease(tmp_path / "running", 0, 1, lambda: PROGRESS, lost.set)
    assert mine.acquire(threading.Event())
    yield mine, lost
    mine.release()


def some_beats() -> None:
    time.sleep(6 * BEAT_S)


def test_a_lease_beats_and_is_gone_when_it_is_released(held: tuple[Lease, threading.Event]) -> None:
    mine, lost = held
    first = read_json(mine.path)["beat"]
    some_beats()
    assert read_json(mine.path)["beat"] > first
    mine.release()
    assert list(mine.path.parent.iterdir()) == []
    assert not lost.is_set()


def test_every_beat_renews_the_sign_of_life_also_of_a_pass_that_only_waits(
    held: tuple[Lease, threading.Event], tmp_path: Path
) -> None:
    owner = tmp_path / "owner.json"
    owner.touch()
    held[0].renew_also(owner)
    os.utime(owner, (0, 0))
    some_beats()
    assert time.time() - owner.stat().st_mtime < 5
    owner.unlink()
    some_beats()
    assert not owner.exists() and not held[1].is_set()


def test_a_lease_that_another_pass_took_is_noticed_and_left_alone(
    held: tuple[Lease, threading.Event],
) -> None:
    mine, lost = held
    LeaseState(**vars(this_process()), **vars(PROGRESS), token="another", beat=1).write(mine.path)
    assert lost.wait(5)
    mine.release()
    assert read_json(mine.path)["token"] == "another"


def test_a_lease_that_stays_away_is_lost_one_that_comes_back_is_not(
    held: tuple[Lease, threading.Event],
) -> None:
    mine, lost = held
    aside = mine.path.with_name("aside")
    for _ in range(10):
        os.rename(mine.path, aside)
        time.sleep(BEAT_S / 5)
        os.rename(aside, mine.path)
        time.sleep(BEAT_S)
    assert not lost.is_set()
    while not lost.wait(4 * BEAT_S):
        mine.path.unlink(missing_ok=True)  # again, where a beat had just looked and put it back


def test_what_killed_passes_left_unfinished_beside_the_leases_is_removed(tmp_path: Path) -> None:
    old, young = tmp_path / ".0-of-1.json.abc.new", tmp_path / ".0-of-1.json.def.new"
    old.touch(), young.touch()
    os.utime(old, (time.time() - ABANDONED_S - 5,) * 2)
    mine = Lease(tmp_path, 0, 1, lambda: PROGRESS, lambda: None)
    assert mine.acquire(threading.Event())
    mine.release()
    assert [path.name for path in tmp_path.iterdir()] == [young.name]


@pytest.mark.parametrize("damage", ["{}", "", '{"format_version": 1}'])
def test_the_holder_of_a_damaged_lease_writes_it_again(
    held: tuple[Lease, threading.Event], damage: str
) -> None:
    mine, lost = held
    mine.path.write_text(damage)
    deadline = time.monotonic() + 30
    while LeaseState.find(mine.path) is None:
        assert time.monotonic() < deadline
        time.sleep(BEAT_S)
    assert LeaseState.read(mine.path).beat > 1
    assert not lost.is_set()


@pytest.mark.parametrize("kind", ["text", "directory", "fifo"])
def test_a_damaged_lease_that_nobody_writes_again_stops_no_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(lease, "UNREADABLE_S", 0.1)
    monkeypatch.setattr(lease, "POLL_S", 0.02)
    mine = Lease(tmp_path / "running", 0, 1, lambda: PROGRESS, lambda: None)
    mine.path.parent.mkdir()
    {"text": lambda path: path.write_text("{}"), "directory": Path.mkdir, "fifo": os.mkfifo}[kind](mine.path)
    stop = threading.Event()
    threading.Timer(20, stop.set).start()
    assert mine.acquire(stop)
    mine.release()
