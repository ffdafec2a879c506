"""The lease of a pass: it beats, it renews what tells of a writer, and it notices when it is another's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_data.passes import lease
from eagle3_data.passes.lease import Lease
from eagle3_data.records import read_json, write_json
from eagle3_data.store import ABANDONED_S

BEAT_S = 0.05


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Lease, threading.Event]]:
    """A lease that beats fast, and whether it was found to be lost."""
    monkeypatch.setattr(lease, "BEAT_S", BEAT_S)
    lost = threading.Event()
    mine = Lease(tmp_path / "running", 0, 1, dict, lost.set)
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
    write_json(mine.path, {"token": "another", "beat": 1})
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
    mine = Lease(tmp_path, 0, 1, dict, lambda: None)
    assert mine.acquire(threading.Event())
    mine.release()
    assert [path.name for path in tmp_path.iterdir()] == [young.name]
