"""Damage to a finished training set is noticed: in moments what shows without reading, by `verify` all of
it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eagle3_data.assembly.verify import look, seal_set, verify
from eagle3_data.errors import InputError
from eagle3_data.hashing import sample_key
from eagle3_data.records import write_json
from eagle3_data.records.checksum import file_checksum
from eagle3_data.store import Store
from eagle3_data.tokenization.batches import SCHEMA
from eagle3_data.validation.verdict import BatchVerdict

ROOT = Path(__file__).parents[2]
IDS = [[n, n + 1, n + 2] for n in range(6)]
LEFT_OUT = sample_key(IDS[4])
ROWS = [ids for ids in IDS if sample_key(ids) != LEFT_OUT]


@pytest.fixture
def training_set(tmp_path: Path) -> Path:
    """Five rows as hard links into a store; one of the run's six samples is left out."""
    store = Store(tmp_path / "store", "e")
    store.directory.mkdir(parents=True)
    for ids in IDS:
        (part := store.directory / "part").write_bytes(bytes(ids) * 40)
        facts = {"size_bytes": 120, "xxh3_128": file_checksum(part), "tokens": 3, "greedy_token": 1}
        store.commit(sample_key(ids), part, facts)
    masks = [[0, 1, 1]] * len(IDS)
    rows = {
        "sample_id": [f"s:{n}" for n in range(6)], "conversation_id": ["c"] * 6, "split": ["train"] * 6,
        "key": [sample_key(ids) for ids in IDS], "input_ids": IDS, "loss_mask": masks,
        "tokens": [3] * 6, "trained_tokens": [2] * 6,
    }  # fmt: skip
    pq.write_table(pa.table(rows, schema=SCHEMA), tmp_path / "samples.parquet", row_group_size=2)
    directory = tmp_path / "results/run/training_set"
    (directory / "hidden_states").mkdir(parents=True)
    write_arrow(directory / "data-00000-of-00001.arrow", ROWS)
    (directory / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    for row, ids in enumerate(ROWS):
        os.link(store.states_path(sample_key(ids)), directory / f"hidden_states/hs_{row}.safetensors")
    (directory / "token_freq.pt").write_bytes(b"frequencies")
    write_json(directory / "provenance.json", {"extraction_id": "e", "seal": "seal.json"})
    for batch in ("00000", "00001", "00002"):
        verdict = BatchVerdict(batch, f"fingerprint {batch}", "e", 2, 6, 240)
        verdict.write(tmp_path / f"results/run/validation/{batch}.json")
    seal_set(
        directory,
        tmp_path / "samples.parquet",
        store,
        {LEFT_OUT},
        {batch: f"fingerprint {batch}" for batch in ("00000", "00001", "00002")},
    )
    return directory


def write_arrow(path: Path, rows: list[list[int]]) -> None:
    table = pa.table({"input_ids": pa.array(rows, pa.list_(pa.int64()))})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def states(directory: Path, row: int = 2) -> Path:
    return directory / f"hidden_states/hs_{row}.safetensors"


def faults(directory: Path) -> list[str]:
    try:
        return list(verify(directory, directory.parent, 2))
    except InputError as error:
        return [str(error)]


def quietly(change: Callable[[Path], object], path: Path) -> None:
    """Keep the time of a file, as `cp -p`, `rsync -a` and a disk that fails do."""
    times = path.stat()
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data)
    change(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def replaced(make: Callable[[Path], object]) -> Callable[[Path], object]:
    return lambda path: (path.unlink(), make(path))


def empty_directory(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def edit_arrow(directory: Path) -> None:
    write_arrow(directory / "data-00000-of-00001.arrow", [*ROWS[:-1], [7, 7, 7]])


SHOWS: dict[str, Callable[[Path], object]] = {
    "states deleted": lambda d: states(d).unlink(),
    "first states deleted": lambda d: states(d, 0).unlink(),
    "last states deleted": lambda d: states(d, 4).unlink(),
    "states edited": lambda d: flip(states(d)),
    "states cut": lambda d: quietly(cut, states(d)),
    "states of another row": lambda d: replaced(lambda p: shutil.copyfile(states(d, 0), p))(states(d)),
    "states a directory": lambda d: replaced(Path.mkdir)(states(d)),
    "states a pipe": lambda d: replaced(os.mkfifo)(states(d)),
    "states a dead link": lambda d: replaced(lambda p: p.symlink_to("nowhere"))(states(d)),
    "states a link": lambda d: replaced(lambda p: p.symlink_to(states(d, 0)))(states(d)),
    "states moved": lambda d: states(d).rename(d / "hidden_states/hs_99.safetensors"),
    "states added": lambda d: (d / "hidden_states/hs_5.safetensors").write_bytes(b"x"),
    "all states deleted": lambda d: shutil.rmtree(d / "hidden_states"),
    "states' directory emptied": lambda d: empty_directory(d / "hidden_states"),
    "states' directory a file": lambda d: (shutil.rmtree(d / "hidden_states"), (d / "hidden_states").touch()),
    "directory emptied": empty_directory,
    "Arrow deleted": lambda d: (d / "data-00000-of-00001.arrow").unlink(),
    "Arrow edited": edit_arrow,
    "Arrow cut": lambda d: quietly(cut, d / "data-00000-of-00001.arrow"),
    "Arrow emptied": lambda d: quietly(lambda p: p.write_bytes(b""), d / "data-00000-of-00001.arrow"),
    "state.json deleted": lambda d: (d / "state.json").unlink(),
    "state.json edited": lambda d: (d / "state.json").write_text("{}"),
    "provenance deleted": lambda d: (d / "provenance.json").unlink(),
    "provenance edited": lambda d: write_json(d / "provenance.json", {"rows": 5, "seal": "seal.json"}),
    "provenance emptied": lambda d: (d / "provenance.json").write_text(""),
    "provenance a directory": lambda d: replaced(Path.mkdir)(d / "provenance.json"),
    "provenance a pipe": lambda d: replaced(os.mkfifo)(d / "provenance.json"),
    "frequencies deleted": lambda d: (d / "token_freq.pt").unlink(),
    "frequencies edited": lambda d: flip(d / "token_freq.pt"),
    "seal deleted": lambda d: (d / "seal.json").unlink(),
    "seal emptied": lambda d: (d / "seal.json").write_text("{}"),
    "seal without rows": lambda d: (d / "seal.json").write_text('{"format_version": 1}'),
    "table deleted": lambda d: (d / "states.parquet").unlink(),
    "table cut": lambda d: quietly(cut, d / "states.parquet"),
}  # fmt: skip
READ: dict[str, Callable[[Path], object]] = {
    "states flipped, time kept": lambda d: quietly(flip, states(d)),
    "states of another row, time kept": lambda d: quietly(
        lambda p: p.write_bytes(states(d, 0).read_bytes()), states(d)
    ),
    "Arrow flipped, time kept": lambda d: quietly(flip, d / "data-00000-of-00001.arrow"),
    "frequencies flipped, time kept": lambda d: quietly(flip, d / "token_freq.pt"),
    "verdict deleted": lambda d: (d.parent / "validation/00001.json").unlink(),
    "verdict emptied": lambda d: (d.parent / "validation/00001.json").write_text("{}"),
    "verdict of another plan": lambda d: BatchVerdict("00001", "another", "e", 2, 6, 240).write(
        d.parent / "validation/00001.json"
    ),
    "verdict with a rejection": lambda d: BatchVerdict(
        "00001", "fingerprint 00001", "e", 2, 6, 240, {"k": "checksum"}
    ).write(d.parent / "validation/00001.json"),
}


def test_a_set_as_it_was_assembled_has_no_fault(training_set: Path) -> None:
    assert look(training_set) == [] and faults(training_set) == []


@pytest.mark.parametrize("kind", SHOWS)
def test_what_shows_without_reading_is_noticed_in_moments_and_by_verify(
    training_set: Path, kind: str
) -> None:
    SHOWS[kind](training_set)
    (fault,) = look(training_set)
    assert str(training_set) in fault and "\n" not in fault
    told = faults(training_set)
    assert told and all("\n" not in one for one in told)


@pytest.mark.parametrize("kind", READ)
def test_what_shows_only_by_reading_is_noticed_by_verify(training_set: Path, kind: str) -> None:
    READ[kind](training_set)
    assert look(training_set) == [], "else it belongs to those that show without reading"
    assert faults(training_set)


def test_rows_are_compared_with_the_keys_even_where_seal_and_arrow_agree(training_set: Path) -> None:
    edit_arrow(training_set)
    seal = json.loads((training_set / "seal.json").read_text())
    name = "data-00000-of-00001.arrow"
    seal["files"][name]["xxh3_128"] = file_checksum(training_set / name)
    seal["files"][name]["size_bytes"] = (training_set / name).stat().st_size
    write_json(training_set / "seal.json", seal)
    assert faults(training_set) == [f"row 4 of {training_set} holds other tokens than those of its states"]


def script(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/verify_training_set.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_set_that_was_copied_is_whole_once_it_was_verified(training_set: Path, tmp_path: Path) -> None:
    copied = tmp_path / "elsewhere/set"
    shutil.copytree(training_set, copied, copy_function=shutil.copyfile)
    assert "has changed since the set was assembled" in look(copied)[0]
    done = script(copied)
    assert done.returncode == 0 and "5 rows, every byte as assembled" in done.stderr
    assert look(copied) == []


def test_the_script_fails_with_every_fault_and_the_remedy(training_set: Path) -> None:
    quietly(flip, states(training_set, 1))
    states(training_set, 3).unlink()
    done = script(training_set, "--results", training_set.parent)
    assert done.returncode == 1
    assert "hs_1.safetensors does not have the checksum" in done.stderr
    assert "hs_3.safetensors cannot be read" in done.stderr
    assert (
        "2 faults; where states have changed, first call `scripts/store.py verify --quarantine`"
        in done.stderr
    )
    assert "then delete the training set and run the same command again" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_set_of_an_earlier_version_is_left_alone_and_verify_says_so(training_set: Path) -> None:
    (training_set / "seal.json").unlink()
    write_json(training_set / "provenance.json", {"extraction_id": "e"})
    assert look(training_set) == []
    assert "was assembled by an earlier version" in script(training_set).stderr
