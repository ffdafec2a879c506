"""A training set is what the run computed, in every trainer's format, whatever happens while it is built."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hs_connectors.fp8_utils import quantize_tensor_to_fp8
from safetensors.torch import load_file, save_file

import eagle3_data
from eagle3_data.assembly import conversion
from eagle3_data.assembly.build import _building_place, _read_inputs, build_training_set
from eagle3_data.assembly.layout import CONVERTED
from eagle3_data.assembly.split import read_split
from eagle3_data.assembly.verify import look, verify
from eagle3_data.errors import ConfigError, Eagle3DataError, InputError, StorageError
from eagle3_data.hashing import sample_key
from eagle3_data.records import write_json
from made_run import SLOTS, MadeRun
from trainer_formats import read_modelopt, read_specforge

ROOT = Path(__file__).parents[2]
ALL = ("speculators", "specforge", "modelopt")
DATED = {"provenance.json", "seal.json"}


def build(run: MadeRun, formats: tuple[str, ...] = ALL, **training_set: object) -> Path:
    settings = run.settings(formats=formats, **training_set)
    build_training_set(settings, run.run.results, run.output, 2)
    return run.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """Ten rows of a tiny model, handed over in all formats with a draft vocabulary of 200 tokens."""
    run = MadeRun(tmp_path_factory.mktemp("made"))
    before = os.umask(0o022)
    build(run, draft_vocab_size=200)
    os.umask(before)
    return run


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return MadeRun(tmp_path / "made", rows=40, random_states=True)


def contents(directory: Path) -> dict[str, str]:
    """Checksums of all files by name, of those without dates."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in DATED
    }


def normalized(made: MadeRun, row: int) -> torch.Tensor:
    """What transformers' own forward gives behind the final norm, [T, H]."""
    with torch.no_grad():
        return made.model.model(torch.tensor([made.ids(row)])).last_hidden_state[0]


# ---- what is in it


def test_the_public_reader_gives_what_the_model_computed(made: MadeRun) -> None:
    rows = eagle3_data.TrainingSet(made.output)
    assert (len(rows), rows.train_rows, rows.layers) == (10, 8, SLOTS)
    for number in range(10):
        token_ids, mask, auxiliary, last = rows[number]
        states = made.states(number)
        assert token_ids.tolist() == made.ids(number) and mask.tolist() == list(map(bool, made.mask(number)))
        assert torch.equal(auxiliary, states[:, :-1]) and torch.equal(last, states[:, -1])
    assert torch.equal(rows[-1].token_ids, rows[9].token_ids)
    with pytest.raises(IndexError):
        rows[10]
    loader = torch.utils.data.DataLoader(rows, batch_size=None)
    assert sum(len(row.token_ids) for row in loader) == made.index.tokens


def test_specforge_reads_states_behind_the_final_norm_and_validation_rows_apart(made: MadeRun) -> None:
    train = read_specforge(made.output / "specforge/train")
    validation = read_specforge(made.output / "specforge/validation")
    assert (len(train), len(validation)) == (8, 2)
    for number, row in enumerate([*train, *validation]):
        assert row["input_ids"].tolist() == made.ids(number) and row["loss_mask"].tolist() == made.mask(
            number
        )
        assert torch.equal(row["aux_hidden_state"][0], made.states(number)[:, :-1].flatten(1))
        torch.testing.assert_close(row["hidden_state"][0], normalized(made, number), rtol=1e-5, atol=1e-5)
        assert not torch.allclose(row["hidden_state"][0], made.states(number)[:, -1], atol=0.1)
    mapping = torch.load(made.output / "specforge/vocab_mapping/vocab_mapping.pt", weights_only=True)
    assert mapping["d2t"].shape == (200,) and mapping["t2d"].sum() == 200
    config = yaml.safe_load((made.output / "specforge/train.yaml").read_text())
    draft = json.loads(Path(config["model"]["draft_model_config"]).read_text())
    assert draft["draft_vocab_size"] == 200
    assert draft["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]
    for name in ("hidden_states_path", "eval_hidden_states_path"):
        assert read_specforge(Path(config["data"][name]))


def test_modelopt_reads_states_before_the_norm_and_nothing_else_lies_in_its_tree(made: MadeRun) -> None:
    found = read_modelopt(made.output / "modelopt/train")
    assert sorted(found) == [f"made:{number}" for number in range(8)]
    assert len(read_modelopt(made.output / "modelopt/validation")) == 2
    for number in range(8):
        row = found[f"made:{number}"]
        assert row["input_ids"].tolist() == made.ids(number) and row["loss_mask"].tolist() == made.mask(
            number
        )
        assert torch.equal(row["hidden_states"], made.states(number)[:, -1])
        assert torch.equal(row["aux_hidden_states"], made.states(number)[:, :-1].flatten(1))
    d2t = torch.load(made.output / "modelopt/vocabulary/d2t.pt", weights_only=True)
    assert np.array_equal(d2t.numpy(), np.load(made.output / "d2t-200.npy"))


def test_fp8_states_are_read_as_what_they_stand_for(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "made", rows=4, random_states=True, dtype="bfloat16")
    directory = build(made, ("speculators",))
    path = directory / "hidden_states/hs_1.safetensors"
    stored = load_file(path)
    values, scales = quantize_tensor_to_fp8(stored["hidden_states"])
    path.unlink()
    save_file({**stored, "hidden_states": values, "hidden_states_scales": scales}, path)
    row = eagle3_data.TrainingSet(directory)[1]
    assert row.last_state.dtype == torch.bfloat16
    torch.testing.assert_close(row.last_state, stored["hidden_states"][:, -1], rtol=0.07, atol=0.02)
    assert not torch.equal(row.last_state, stored["hidden_states"][:, -1])


def test_a_set_of_states_in_fp8_is_read_by_speculators_as_its_train_yaml_says(tmp_path: Path) -> None:
    from hs_connectors import HiddenStatesBackend
    from speculators.train.config import TrainConfig
    from speculators.train.data import ArrowDataset

    sections = {"extraction": {"storage_dtype": "fp8"}}
    made = MadeRun(tmp_path / "made", rows=4, random_states=True, dtype="bfloat16", sections=sections)
    directory = build(made, ("speculators", "modelopt"))
    flat = TrainConfig.resolve(["--config", str(directory / "train.yaml")]).flatten()
    assert flat["hidden_states_backend"] == "fp8"
    backend = HiddenStatesBackend.registry[flat["hidden_states_backend"]]
    transfer = backend.from_train_args(argparse.Namespace(hidden_states_path=None), str(directory))
    dataset = ArrowDataset(max_len=64, datapath=directory, transfer=transfer, on_missing="raise")
    assert load_file(directory / "hidden_states/hs_1.safetensors")["hidden_states"].element_size() == 1
    for row in range(4):
        states, item = made.states(row), dataset[row]
        assert item["hidden_states"].dtype == torch.bfloat16
        ours = eagle3_data.TrainingSet(directory)[row]
        for read, slots in (
            (item["hidden_states"].reshape(len(states), -1, states.shape[-1]), states[:, :-1]),
            (item["verifier_last_hidden_states"], states[:, -1]),
            (ours.aux_states, states[:, :-1]),
            (ours.last_state, states[:, -1]),
        ):
            error = (read.float() - slots).norm(dim=-1) / slots.norm(dim=-1)
            assert 0.01 < error.median() < 0.04, "neither exact nor worse than eight bits"
    converted = torch.load(next(directory.glob("modelopt/train/*/data_*0.pt")), weights_only=True)
    assert torch.equal(converted["hidden_states"], eagle3_data.TrainingSet(directory)[0].last_state)


def test_others_may_read_what_the_umask_lets_them_read(made: MadeRun) -> None:
    for path in made.output.rglob("*"):
        if "hidden_states" not in path.parts:  # links into the store, which has its own tests
            assert path.stat().st_mode & 0o044 == 0o044, path


# ---- what trainers are told


def test_speculators_takes_its_settings_from_train_yaml(made: MadeRun) -> None:
    from speculators.train.config import TrainConfig
    from speculators.train.data import ArrowDataset

    with pytest.warns() as told:
        config = TrainConfig.resolve(["--config", str(made.output / "train.yaml")])
        __import__("warnings").warn("at least one", stacklevel=1)
    assert [str(one.message) for one in told if "nknown" in str(one.message)] == []
    flat = config.flatten()
    expected = {
        "verifier_name_or_path": str(made.target), "target_layer_ids": list(SLOTS[:-1]),
        "draft_vocab_size": 200, "data_path": str(made.output), "total_seq_len": 64,
        "train_data_ratio": 0.8, "on_missing": "raise", "speculator_type": "eagle3",
    }  # fmt: skip
    assert {name: flat[name] for name in expected} == expected
    sides = {}
    for side in ("train", "val"):
        sides[side] = ArrowDataset(
            max_len=64,
            datapath=made.output,
            on_missing="raise",
            train_ratio=flat["train_data_ratio"],
            split=side,
        )
    assert [len(sides["train"]), len(sides["val"])] == [8, 2]
    for number, item in enumerate(
        [*map(sides["train"].__getitem__, range(8)), *map(sides["val"].__getitem__, range(2))]
    ):
        assert torch.equal(item["verifier_last_hidden_states"], made.states(number)[:, -1])


def test_the_card_says_what_is_in_the_set_and_how_each_trainer_is_called(made: MadeRun) -> None:
    card = (made.output / "README.md").read_text()
    facts = json.loads((made.output / "provenance.json").read_text())
    assert f"speculators train --config {made.output / 'train.yaml'}\n" in card
    assert f"specforge train --config {made.output / 'specforge/train.yaml'}\n" in card
    for use in facts["formats"].values():
        assert use["command"] in card
    for said in ("8 training rows, then 2", "200 of the target's 256", "cc0-1.0", "no reference was made"):
        assert said in card
    for folder in CONVERTED:
        assert (made.output / folder / "README.md").read_text() == card


def test_the_provenance_tells_sources_versions_and_settings(made: MadeRun) -> None:
    facts = json.loads((made.output / "provenance.json").read_text())
    (source,) = facts["sources"]
    assert (source["rows"], source["kept"], source["licence"]) == (10, 10, "cc0-1.0")
    assert list(source["files"]) == ["data.jsonl"]
    assert facts["configuration"]["extraction"]["layers"] == list(SLOTS)
    assert {"torch", "transformers", "speculators", "python"} <= facts["versions"].keys()
    assert facts["tokenizer"]["chat_template"] == "h"
    assert facts["split"] == {"train": 8, "validation": 2, "train_data_ratio": 0.8, "set_aside": True}
    assert facts["dates"]["assembled_at"] and facts["hosts"]


def test_a_left_out_sample_moves_the_cut_and_is_counted_by_cause(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "made", random_states=True)
    made.leave_out(3)
    build(made)
    facts = json.loads((made.output / "provenance.json").read_text())
    assert facts["failed"] == {"SampleError": 1}
    assert (facts["split"]["train"], facts["split"]["validation"]) == (7, 2)
    assert int(9 * facts["split"]["train_data_ratio"]) == 7
    rows = eagle3_data.TrainingSet(made.output)
    assert torch.equal(rows[3].last_state, made.states(4)[:, -1])
    assert sorted(read_modelopt(made.output / "modelopt/validation")) == ["made:8", "made:9"]


def test_without_a_split_the_last_conversation_is_held_back(made: MadeRun) -> None:
    none_left = {sample_key(made.ids(row)) for row in (8, 9)}
    split = read_split(made.run.samples, none_left, 1.0)
    assert (split.train, split.validation, split.set_aside) == (8, 0, False)
    assert int(8 * split.train_data_ratio) == 7


# ---- how it is built


@pytest.mark.slow
def test_two_runs_from_scratch_are_byte_identical_and_a_conversion_of_one_process_is_that_of_two(
    tmp_path: Path,
) -> None:
    found = []
    for processes in (1, 2):
        made = MadeRun(tmp_path / "made", random_states=True, rows=70)
        build_training_set(made.settings(formats=ALL), made.run.results, made.output, processes)
        found.append(contents(made.directory))
        made.directory.rename(tmp_path / f"made-{processes}")
    assert len(found[0]) > 3 * 70
    assert found[0] == found[1]


BUILD = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from made_run import MadeRun
from eagle3_data.assembly.build import build_training_set
if __name__ == "__main__":
    run = MadeRun(Path(sys.argv[3]), random_states=True)
    settings = run.settings(formats=("speculators", "specforge", "modelopt"))
    build_training_set(settings, run.run.results, run.output, 2)
"""


@pytest.mark.slow
def test_a_build_that_is_killed_goes_on_and_gives_the_same(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "made", random_states=True, rows=256)
    script = tmp_path / "build.py"
    script.write_text(BUILD)
    command = [sys.executable, script, ROOT / "scripts", ROOT / "tests", made.directory]
    process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, start_new_session=True)
    journal = ".training_set.*.part/.specforge.journal.part"
    while not any(path.read_bytes().count(b"\n") > 3 for path in made.run.results.glob(journal)):
        assert process.poll() is None, process.stderr and process.stderr.read().decode()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)  # the workers end by themselves
    process.wait()
    (building,) = made.run.results.glob(".training_set.*.part")
    assert not made.output.exists()
    kept = {path: path.stat().st_mtime_ns for path in building.rglob("*.ckpt")}
    with open(building / ".specforge.journal.part", "ab") as cut:
        cut.write(b'[999999, [["x"')
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "specforge: goes on where an earlier call ended" in done.stderr
    unchanged = [
        path
        for path, written in kept.items()
        if (made.output / path.relative_to(building)).stat().st_mtime_ns == written
    ]
    assert len(unchanged) >= 3 * conversion.CHUNK_ROWS
    resumed = contents(made.output)
    made.output.rename(tmp_path / "resumed")
    build(made)
    assert contents(made.output) == resumed
    assert not list(made.run.results.glob(".training_set.*"))


def test_what_was_assembled_is_verified_in_every_format(tmp_path: Path) -> None:
    made = MadeRun(tmp_path / "made", random_states=True)
    directory = build(made)
    assert look(directory) == [] and list(verify(directory, made.run.results, 2)) == []
    rows = sorted((directory / "specforge/train").rglob("*.ckpt"))
    data = bytearray(rows[2].read_bytes())
    times = rows[2].stat()
    data[-200] ^= 1
    rows[2].write_bytes(data)
    os.utime(rows[2], ns=(times.st_atime_ns, times.st_mtime_ns))
    (fault,) = verify(directory, made.run.results, 2)
    assert str(rows[2]) in fault and "checksum" in fault
    extra = directory / "modelopt/train/rows_0000-2000/mine.pt"
    extra.touch()
    assert "mine.pt does not belong to the set" in look(directory)[0]
    extra.unlink()
    rows[0].unlink()
    assert str(rows[0]) in look(directory)[0] and "missing" in look(directory)[0]


# ---- what stands against it


def refused(run: MadeRun, error: type[Eagle3DataError], *words: str, **training_set: object) -> None:
    with pytest.raises(error) as told:
        build(run, **training_set)
    for word in words:
        assert word in str(told.value), told.value
    assert not (run.output / "provenance.json").exists()


def test_a_set_without_the_last_layer_is_refused(tmp_path: Path, made: MadeRun) -> None:
    with pytest.raises(ConfigError, match="last-layer-missing"):
        MadeRun(tmp_path / "made", random_states=True, layers=(1, 2, 3))
    facts = json.loads((made.output / "provenance.json").read_text())
    facts["extraction"]["layers"] = [0, 1, 2, 3]
    write_json(tmp_path / "provenance.json", facts)
    with pytest.raises(ConfigError, match=r"holds layers \[0, 1, 2, 3\].* layer 4"):
        eagle3_data.TrainingSet(tmp_path)


def test_specforge_is_refused_with_another_number_of_layers(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "made", random_states=True, layers=(1, 4))
    refused(run, ConfigError, "exactly 3", "[1, 4]", "training_set.formats")
    build(run, ("speculators", "modelopt"))
    assert read_modelopt(run.output / "modelopt/train")["made:0"]["aux_hidden_states"].shape[1] == 64


def test_states_of_another_extraction_are_refused(run: MadeRun) -> None:
    sidecar = run.store.sidecar_path(sample_key(run.ids(2)))
    times = sidecar.stat()
    facts = json.loads(sidecar.read_text())
    write_json(sidecar, {**facts, "extraction_id": "of-another"})
    os.utime(sidecar, ns=(times.st_atime_ns, times.st_mtime_ns))
    refused(run, InputError, "of-another", run.identity.extraction_id)


def test_a_batch_that_is_not_validated_is_refused(run: MadeRun) -> None:
    run.run.verdict("00001").unlink()
    refused(run, InputError, "validation/00001.json does not exist")


def test_a_folder_with_foreign_files_is_left_alone(run: MadeRun) -> None:
    run.output.mkdir()
    (run.output / "thesis.tex").write_text("three years")
    refused(run, InputError, "thesis.tex", "move that away")
    assert (run.output / "thesis.tex").read_text() == "three years"


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = conversion.shutil.disk_usage("/")
    monkeypatch.setattr(conversion.shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    refused(run, StorageError, "specforge and modelopt take", "0.00 GiB free", "make room")
    assert not list(run.run.results.rglob("*.ckpt"))


def test_a_second_call_at_the_same_time_is_refused(run: MadeRun) -> None:
    inputs = _read_inputs(run.settings(), run.run)
    with _building_place(run.output, inputs), pytest.raises(StorageError, match="another call"):
        build(run)
