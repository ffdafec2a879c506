"""The reference of a run: once for each version of the engine, kept in the store, and honest where it proves
nothing."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from eagle3_data.config import Extraction
from eagle3_data.engines.base import states_metadata
from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.hashing import sample_key
from eagle3_data.identity import identify_extraction
from eagle3_data.passes import reference
from eagle3_data.passes.ledger import FailedSample, Gate
from eagle3_data.passes.reference import ReferenceRun
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.checksum import file_checksum
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.store import Store
from eagle3_data.target import TargetDescription
from eagle3_data.validation.reference_verdict import EngineReference, Reference
from tiny_models import LAYERS, VOCABULARY, tiny_model
from unit.test_head import written

LENGTHS = [(40, 90, 45), (60, 35, 120)]
"""Of the samples of two batches."""
SLOTS = (1, 2, LAYERS)
CURRENT, EARLIER = {"vllm": "2", "torch": "3"}, {"vllm": "1", "torch": "3"}


@dataclass
class Fixture:
    """A run of two batches, and the keys of their samples."""

    run: RunPaths
    target: TargetDescription
    extraction: Extraction
    store: Store
    keys: list[list[str]]

    def prove(self, number: int = 2) -> Reference:
        identity = identify_extraction(self.target, self.extraction)
        return ReferenceRun(self.run, self.target, self.extraction, identity).prove(number, False)

    def records(self) -> list[Path]:
        return sorted(self.store.directory.glob("reference/*.json"))


def opened(directory: Path, keys: list[list[str]]) -> Fixture:
    weights = directory / "target/model.safetensors"
    target = TargetDescription(
        str(weights.parent), "LlamaForCausalLM", "LlamaForCausalLM", "llama", LAYERS, 64, VOCABULARY, 512,
        "none", weights.stat().st_size, False, "fingerprint",
    )  # fmt: skip
    extraction = Extraction(layers=SLOTS, store=str(directory / "store"))
    store = Store(extraction.store, identify_extraction(target, extraction).extraction_id)
    return Fixture(RunPaths(directory / "results/test"), target, extraction, store, keys)


def make_run(directory: Path, versions: list[dict[str, str]]) -> list[list[str]]:
    """Returns the keys of each batch."""
    checkpoint = written(tiny_model("LlamaForCausalLM").bfloat16(), directory / "target")
    made = opened(directory, [])
    run, store = made.run, made.store
    run.tokens.mkdir(parents=True)
    store.directory.mkdir(parents=True)
    model, generator = ReferenceModel(str(checkpoint), torch.bfloat16), np.random.default_rng(0)
    entries, keys, tables = {}, [], []
    for number, lengths in enumerate(LENGTHS):
        ids = [tuple(generator.integers(3, VOCABULARY, length).tolist()) for length in lengths]
        keys.append([sample_key(one) for one in ids])
        for one, key in zip(ids, keys[-1], strict=True):
            states, greedy = model.states(one, SLOTS)
            part = store.directory / "part"
            tensors = {"hidden_states": states.bfloat16().contiguous(), "token_ids": torch.tensor(one)}
            save_file(tensors, part, states_metadata({"extraction_id": store.extraction_id}, key))
            sidecar: dict[str, Any] = {
                "greedy_token": greedy, "tokens": len(one), "size_bytes": part.stat().st_size,
                "xxh3_128": file_checksum(part), "versions": {**versions[number], "workflow": str(number)},
            }  # fmt: skip
            store.commit(key, part, sidecar)
        columns = {
            "sample_id": [f"s{number}-{n}" for n in range(len(ids))],
            "key": keys[-1],
            "input_ids": pa.array(ids, pa.list_(pa.int32())),
            "loss_mask": pa.array([[1] * len(one) for one in ids], pa.list_(pa.uint8())),
            "tokens": pa.array(map(len, ids), pa.int32()),
        }
        tables.append(pa.table(columns))
        entries[f"{number:05d}"] = BatchEntry(number, len(ids), sum(lengths), "f")
        Gate(f"{number:05d}", "f", "ledger", len(ids), []).write(run.gate(f"{number:05d}"))
    with pq.ParquetWriter(run.samples, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    BatchIndex(entries, 6, 390).write(run.batches)
    return keys


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[str]]]:
    directory = tmp_path_factory.mktemp("run")
    return directory, make_run(directory, [CURRENT, CURRENT])


@pytest.fixture
def one(template: tuple[Path, list[list[str]]], tmp_path: Path) -> Fixture:
    """A run whose samples engines of one version stored."""
    directory, keys = template
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    return opened(tmp_path, keys)


def test_what_passed_is_kept_and_a_damaged_record_is_made_again(
    one: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = one.prove()
    assert (first.status, len(first.engines)) == ("passed", 1)
    assert first.engines[0].samples == {one.keys[1][1]: 35, one.keys[1][0]: 60}
    assert first.engines[0].versions == CURRENT
    (record,) = one.records()
    record.write_text("{")
    assert one.prove().status == "passed"
    assert EngineReference.find(record), "made again"
    assert len(one.prove(3).engines[0].samples) == 3, "more are asked for"
    monkeypatch.setattr(reference, "compare", lambda *_: pytest.fail("it is known"))
    again = one.prove()
    assert (again.status, len(again.engines[0].samples)) == ("passed", 3)


def test_each_version_of_the_engine_is_compared(tmp_path: Path) -> None:
    two = opened(tmp_path, make_run(tmp_path, [EARLIER, CURRENT]))
    found = two.prove()
    assert found.status == "passed"
    assert [engine.versions for engine in found.engines] == [EARLIER, CURRENT]
    for engine, keys in zip(found.engines, two.keys, strict=True):
        assert set(engine.samples) <= set(keys)
        assert len(engine.samples) == 2
    assert len(two.records()) == 2
    assert sum(proof.samples for proof in found.proofs()) == 4


def test_a_damaged_sample_is_left_to_validation_and_one_that_was_left_out_is_not_there(one: Fixture) -> None:
    shortest, median = one.keys[1][1], one.keys[1][0]
    with open(one.store.states_path(shortest), "r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    one.store.states_path(median).unlink()
    gate = Gate.read(one.run.gate("00001"))
    left_out = FailedSample("s1-0", median, "record")
    Gate("00001", "f", "ledger", gate.samples - 1, [left_out]).write(one.run.gate("00001"))
    found = one.prove()
    assert found.status == "passed"
    assert not {shortest, median} & set(found.engines[0].samples)


def test_where_no_sample_is_whole_nothing_is_proven(one: Fixture) -> None:
    for key in (key for keys in one.keys for key in keys):
        one.store.states_path(key).unlink()
    found = one.prove()
    assert found.status == "unknown"
    assert found.proofs()[0].unknown == "no stored sample of this run is whole"


def test_a_target_that_transformers_cannot_compute_is_unknown(one: Fixture) -> None:
    written(
        tiny_model("LlamaForCausalLM"),
        Path(one.target.path),
        architectures=["NoSuchForCausalLM"],
        model_type="nosuch",
    )
    found = one.prove()
    assert (found.status, one.records()) == ("unknown", [])
    assert "nosuch" in str(found.proofs()[0].unknown)


def test_an_engine_that_was_given_another_model_is_not_compared_with_this_one(one: Fixture) -> None:
    one.extraction = Extraction(**vars(one.extraction) | {"engine_arguments": {"hf_overrides": {"a": 1}}})
    found = one.prove()
    assert found.status == "unknown"
    assert "engine_arguments.hf_overrides" in str(found.proofs()[0].unknown)


def test_a_store_that_cannot_be_written_costs_nothing_but_the_next_time(one: Fixture) -> None:
    (one.store.directory / "reference").write_text("no directory")
    assert one.prove().status == "passed"


def test_what_costs_too_much_is_off(one: Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_data.validation.reference.available_bytes", lambda: 1 << 20)
    found = one.prove()
    assert (found.status, one.records()) == ("off", [])
    assert "GiB of memory" in str(found.proofs()[0].unknown)


def test_a_wrong_sample_fails_it_and_nothing_is_kept(one: Fixture) -> None:
    other = tiny_model("LlamaForCausalLM")
    with torch.no_grad():
        other.model.layers[1].mlp.down_proj.weight.mul_(1.2)
    written(other.bfloat16(), Path(one.target.path))
    found = one.prove()
    assert (found.status, one.records()) == ("failed", [])
    assert not any("slot 0" in fault for fault in found.engines[0].faults), "before that layer all is right"
    assert any("slot 1 (layer 2) is off by" in fault for fault in found.engines[0].faults)
