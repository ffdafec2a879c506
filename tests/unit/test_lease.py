"""The lease of a pass: it beats, it renews what tells of a writer, and it notices when it is another's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eagle3_data.passes import lease
from eagle3_data.passes.lease import Lease, LeaseState, PassProgress
from eagle3_data.records import read_json
from eagle3_data.store import ABANDONED_S
from eagle3_data.system.processes import this_process

BEAT_S = 0.05
PATIENCE_S = 60
"""For what must happen; only a test that fails waits so long."""
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


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(BEAT_S / 5)


def beats(mine: Lease) -> int:
    return int(read_json(mine.path)["beat"])


def wait_for_beats(mine: Lease, number: int = 2) -> None:
    last = beats(mine) + number
    wait_for(lambda: beats(mine) >= last)


def test_a_lease_beats_and_is_gone_when_it_is_released(held: tuple[Lease, threading.Event]) -> None:
    mine, lost = held
    wait_for_beats(mine)
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
    wait_for(lambda: owner.stat().st_mtime > 0)
    owner.unlink()
    wait_for_beats(held[0])
    assert not owner.exists() and not held[1].is_set()


def test_a_lease_that_another_pass_took_is_noticed_and_left_alone(
    held: tuple[Lease, threading.Event],
) -> None:
    mine, lost = held
    another = LeaseState(**vars(this_process()), **vars(PROGRESS), token="another", beat=1)

    def taken() -> bool:
        another.write(mine.path)  # again, where a beat that had just looked wrote over it
        return lost.wait(BEAT_S)

    wait_for(taken)
    mine.release()
    assert read_json(mine.path)["token"] == "another"


def test_a_lease_that_is_away_at_one_beat_is_kept_and_at_two_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 1e6)  # it beats when this test says so
    mine = Lease(tmp_path / "running", 0, 1, lambda: PROGRESS, lambda: None)
    assert mine.acquire(threading.Event())
    aside = mine.path.with_name("aside")
    for _ in range(3):
        os.rename(mine.path, aside)
        assert mine.renew()
        os.rename(aside, mine.path)
        before = beats(mine)
        assert mine.renew()
        assert beats(mine) == before + 1
    mine.path.unlink()
    assert [mine.renew(), mine.renew()] == [True, False]
    mine.release()


def test_a_lease_that_stays_away_is_found_to_be_lost(held: tuple[Lease, threading.Event]) -> None:
    mine, lost = held

    def noticed() -> bool:
        mine.path.unlink(missing_ok=True)  # again, where a beat had just looked and put it back
        return lost.wait(4 * BEAT_S)

    wait_for(noticed)


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
    wait_for(lambda: LeaseState.find(mine.path))
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
    timer = threading.Timer(PATIENCE_S, stop.set)
    timer.start()
    assert mine.acquire(stop)
    timer.cancel()
    mine.release()
