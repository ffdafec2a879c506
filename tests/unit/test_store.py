"""The store: a sample is there when both files are, and never half."""

from pathlib import Path

import pytest

from eagle3_data.errors import InputError
from eagle3_data.records import find_json, read_json, write_json
from eagle3_data.store import Store

KEY = "ab" + 30 * "0"


def committed(root: Path) -> Store:
    store = Store(root, "id")
    store.incoming("w").mkdir(parents=True)
    states = store.incoming("w") / "x"
    states.write_bytes(b"states")
    store.commit(KEY, states, {"greedy_token": 7})
    return store


def test_a_committed_sample_is_held_and_listed(tmp_path: Path) -> None:
    store = committed(tmp_path)
    assert store.holds(KEY)
    assert store.keys() == {KEY}
    assert store.read_sidecar(KEY)["greedy_token"] == 7
    assert store.states_path(KEY) == tmp_path / "id/ab" / f"{KEY}.safetensors"


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
    with pytest.raises(InputError, match="another format version"):
        read_json(path)
