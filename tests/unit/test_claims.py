"""Claims: one living pass a sample, and nothing that a dead pass leaves behind stands in the way."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3_data.engines.base import Request
from eagle3_data.passes.claims import LOOK_S, PATIENCE_S, Claims, share
from eagle3_data.store import Store
from eagle3_data.system.processes import this_process

KEY, OTHER = "ab" * 16, "cd" * 16


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, "id")


def claims(store: Store, writer: str) -> Claims:
    store.open_incoming(writer, this_process())
    return Claims(store, writer)


def test_a_sample_is_one_living_passes(store):
    first, second = claims(store, "first"), claims(store, "second")
    assert first.take(KEY)
    assert not second.take(KEY)
    assert second.holder(KEY) == "first"
    assert second.take(OTHER)
    assert first.holder(KEY) is None, "its own is no other's"


def test_of_many_passes_at_once_one_gets_each_sample(store):
    keys = [f"{number:032x}" for number in range(50)]
    passes = [claims(store, f"pass-{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda one: [key for key in keys if one.take(key)], passes))
    assert sorted(key for some in taken for key in some) == keys


def test_what_has_settled_is_given_up_and_what_waits_is_not(store):
    first, second = claims(store, "first"), claims(store, "second")
    assert first.take(KEY) and first.take(OTHER)
    first.release(lambda key: key == OTHER)
    assert second.take(KEY) and not second.take(OTHER)
    first.release()
    assert second.take(OTHER)


def test_a_dead_passes_claims_go(store):
    dead = claims(store, "dead")
    assert dead.take(KEY) and dead.take(OTHER)
    living = claims(store, "living")
    shutil.rmtree(store.directory / "incoming/dead")  # what the next pass does with what a killed one left
    assert living.take(KEY)
    claims(store, "third")
    assert os.listdir(store.directory / "claims") == [KEY]


def test_a_killed_passes_claims_are_taken_over_at_once(store):
    store.open_incoming("killed", replace(this_process(), pid_started="1"))
    killed, living = Claims(store, "killed"), claims(store, "living")
    assert killed.take(KEY)
    assert living.take(KEY)


# ---- sharing


class Pass:
    """What `share` asks a pass for, with a store that a test fills."""

    def __init__(self, store: Store, writer: str, keys: list[str]) -> None:
        self.stored: set[str] = set()
        self.settled: set[str] = set()
        self.claims = claims(store, writer)
        requests = (Request(key, (1,), key) for key in keys)
        self.shared = share(requests, self.claims, lambda key: key not in self.settled, self.is_found)

    def is_found(self, key: str) -> bool:
        if found := key in self.stored:
            self.settled.add(key)
        return found

    def next(self) -> str | None:
        """The next sample to extract; None where it is to be asked again."""
        request = next(self.shared)
        return request and request.key


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves time on."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def move_on(seconds: float) -> None:
        now[0] += seconds

    return move_on


def test_passes_take_turns_and_end_with_what_the_other_brings(store, clock):
    first, second = (Pass(store, name, ["a", "b", "c"]) for name in ("first", "second"))
    assert [first.next(), second.next(), first.next()] == ["a", "b", "c"]
    assert second.next() is None, "a and c are with the first"
    second.stored |= {"a", "c"}
    clock(LOOK_S)
    with pytest.raises(StopIteration):
        second.next()
    assert second.settled == {"a", "c"}


def test_what_the_other_pass_gives_up_is_taken(store, clock):
    first, second = (Pass(store, name, ["a", "b"]) for name in ("first", "second"))
    assert [first.next(), second.next(), second.next()] == ["a", "b", None]
    first.claims.release()
    assert second.next() is None, "it looks again only after a while"
    clock(LOOK_S)
    assert second.next() == "a"


def test_a_pass_from_which_nothing_comes_is_not_waited_for_longer_than_patience(store, clock):
    first, second = (Pass(store, name, ["a", "b", "c"]) for name in ("first", "second"))
    assert [first.next(), first.next(), second.next(), second.next()] == ["a", "b", "c", None]
    clock(PATIENCE_S - 1)
    second.stored.add("a")
    assert second.next() is None, "something came, so it waits on"
    clock(PATIENCE_S - 1)
    assert second.next() is None
    clock(2)
    assert second.next() == "b"


@pytest.mark.parametrize("broken", ["no links", "a file"])
def test_without_claims_every_pass_extracts_everything(store, monkeypatch, broken):
    def refuse(*arguments):
        raise OSError

    if broken == "a file":
        store.directory.mkdir()
        (store.directory / "claims").write_text("")
    else:
        monkeypatch.setattr(os, "symlink", refuse)
    assert all(claims(store, name).take(KEY) for name in ("first", "second"))
