"""Permissions follow the umask, also where a library makes private files."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from eagle3_data.config import Target, load_section
from eagle3_data.engines.base import publish_states
from eagle3_data.store import Store
from eagle3_data.system.modes import current_umask, follow_umask
from eagle3_data.system.processes import this_process

KEY = "ab" * 16


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_the_umask_is_read_without_setting_it(umask):
    assert current_umask() == umask == current_umask()


def test_every_file_of_the_store_follows_the_umask(tmp_path, umask):
    store = Store(tmp_path / "store", "id")
    store.prepare()
    states = store.open_incoming("w", this_process()) / "x.safetensors"
    publish_states(str(states), lambda part: save_file({"hidden_states": torch.zeros(3)}, part))
    store.commit(KEY, states, {})
    with store.in_use():
        paths = list((tmp_path / "store").rglob("*"))
    assert {path.name for path in paths} >= {f"{KEY}.safetensors", f"{KEY}.json", ".lock", "owner.json"}
    for path in paths:
        assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_a_shared_folder_keeps_its_group(tmp_path, umask):
    group = tmp_path / "group"
    group.mkdir()
    group.chmod(0o2775)
    store = Store(group / "store", "id")
    store.open_incoming("w", this_process())
    assert mode(store.directory / "incoming/w") == 0o2777 & ~umask


def test_a_temporary_directory_that_stays_follows_the_umask(tmp_path, umask):
    directory = tmp_path / "built"
    directory.mkdir(mode=0o700)
    (directory / "inner").mkdir(mode=0o700)
    directory.chmod(0o2700)
    (directory / "inner/weights").touch(mode=0o600)
    follow_umask(directory)
    assert mode(directory) == 0o2777 & ~umask
    assert mode(directory / "inner") == 0o777 & ~umask
    assert mode(directory / "inner/weights") == 0o666 & ~umask


def test_a_private_configuration_makes_private_files(tmp_path, umask):
    config = tmp_path / "config.yaml"
    config.write_text("private: true\ntarget: {path: x}\n")
    load_section(str(config), "target", Target)
    assert current_umask() == 0o077
