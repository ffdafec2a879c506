"""States stored in FP8, on real vLLM: through every proof into a set that speculators reads, in half the
bytes."""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import pytest
import torch

from eagle3_data.validation.reference_verdict import Reference
from integration.fixtures import demo_config, demo_target
from integration.parity import compare, stored_samples
from integration.workflow import Workflow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("vllm"),
]
LAYERS = [2, 4, 5, 8]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-kimi"])
def test_states_in_fp8_are_proven_and_read_by_the_trainer(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    workflow = Workflow(
        tmp_path / "run", demo_config(demo_target(tmp_path_factory, name), storage_dtype="fp8")
    )
    run = workflow.run("all", timeout=1500)
    assert run.returncode == 0, run.output
    ledger = json.loads(workflow.ledger("001").read_text())
    assert [finding for finding in ledger["canary"] if finding["level"] == "fail"] == []
    assert (len(ledger["replay"]["samples"]), ledger["replay"]["failed"]) == (8, {})
    assert Reference.read(workflow.results / "reference.json").status == "passed"

    compared = compare(workflow, LAYERS)
    own = [error for one in compared for error in one.own()]
    print(f"{name}, FP8: relative errors: median {statistics.median(own):.4f}, largest {max(own):.4f}")
    assert 0.02 < statistics.median(own) < 0.035
    assert min(error for one in compared for error in one.neighbours()) > 0.2
    hidden_size = stored_samples(workflow)[0][1].bits.shape[-1]
    token_bytes = len(LAYERS) * (hidden_size + 4) + 8
    overhead = ledger["written_bytes"] - ledger["tokens_extracted"] * token_bytes
    assert 0 < overhead < 1024 * ledger["samples_extracted"], "headers"
    _trainer_reads(workflow)


def _trainer_reads(workflow: Workflow) -> None:
    from hs_connectors import HiddenStatesBackend
    from speculators.train.config import TrainConfig
    from speculators.train.data import ArrowDataset

    directory = workflow.results / "training_set"
    flat = TrainConfig.resolve(["--config", str(directory / "train.yaml")]).flatten()
    backend = HiddenStatesBackend.registry[flat["hidden_states_backend"]]
    transfer = backend.from_train_args(argparse.Namespace(hidden_states_path=None), str(directory))
    dataset = ArrowDataset(max_len=1024, datapath=directory, transfer=transfer, on_missing="raise")
    stored = {tuple(sample.token_ids): states for sample, states in stored_samples(workflow)}
    for row in (0, len(dataset) - 1):
        item = dataset[row]
        states = stored[tuple(item["input_ids"].tolist())]
        read = item["verifier_last_hidden_states"].float()
        assert item["verifier_last_hidden_states"].dtype == torch.bfloat16
        expected = torch.from_numpy(states.values(slice(None), -1).copy())
        torch.testing.assert_close(read, expected, rtol=2**-8, atol=0)
