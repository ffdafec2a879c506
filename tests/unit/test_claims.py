"""Claims: one living pass a sample, and nothing that a dead pass leaves behind stands in the way."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from eagle3_data.passes.claims import Claims
from eagle3_data.processes import this_process
from eagle3_data.store import Store

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
