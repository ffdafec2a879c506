"""Which directory target.path means, and when what is there has changed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from eagle3_data.errors import InputError
from eagle3_data.target.locate import locate_target, state_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with one model of two snapshots, of which main is the older."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    root = tmp_path / "hub/models--owner--name"
    for age, commit in enumerate(("b" * 40, "a" * 40)):
        snapshot = root / "snapshots" / commit
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text("{}")
        os.utime(snapshot, (1000 + age, 1000 + age))
    (root / "refs").mkdir()
    (root / "refs/main").write_text("b" * 40)
    return root


def test_a_checkpoints_own_directory_is_meant_as_it_is(tmp_path: Path) -> None:
    assert locate_target(str(tmp_path)) == tmp_path
    assert locate_target("no/such/directory") == Path("no/such/directory")


def test_a_cache_folder_means_the_snapshot_of_its_main_branch(cache: Path) -> None:
    assert locate_target(str(cache)).name == "b" * 40
    (cache / "refs/main").write_text("c" * 40)
    assert locate_target(str(cache)).name == "a" * 40, "the newest, where main was never downloaded"
    shutil.rmtree(cache / "refs")
    assert locate_target(str(cache)).name == "a" * 40
    shutil.rmtree(cache / "snapshots")
    (cache / "snapshots").mkdir()
    with pytest.raises(
        InputError, match="holds no snapshot; the download did not finish: hf download owner/name"
    ):
        locate_target(str(cache))


def test_a_hub_id_means_what_was_downloaded(cache: Path) -> None:
    assert locate_target("owner/name") == cache / "snapshots" / ("b" * 40)
    with pytest.raises(InputError, match=r"in the local cache .*: hf download owner/other"):
        locate_target("owner/other")


def test_an_empty_path_is_named() -> None:
    with pytest.raises(InputError, match=r"target\.path is empty"):
        locate_target("")


def test_what_replaces_a_file_or_a_link_changes_the_state_whatever_its_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
        os.utime(tmp_path / name / "model.safetensors", (1000, 1000))
    link = tmp_path / "link"
    link.symlink_to("one")
    before = state_of(link)
    assert state_of(link) == before
    link.unlink()
    link.symlink_to("two")
    assert state_of(link) != before
    before = state_of(tmp_path / "one")
    shutil.copy2(tmp_path / "two/model.safetensors", tmp_path / "one/new")
    (tmp_path / "one/new").rename(tmp_path / "one/model.safetensors")  # as rsync does
    assert state_of(tmp_path / "one") != before
