"""The story's own shape on real vLLM: Kimi-K2.5's wrapper around MLA and experts, on one, two and eight
workers."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.validation.reference_verdict import Reference
from integration.fixtures import demo_config, demo_target
from integration.parity import compare
from integration.workflow import Workflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("vllm")]

LAYERS = [2, 4, 5, 8]


@pytest.fixture(scope="module")
def tiny_kimi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_target(tmp_path_factory, "tiny-kimi")


def validated(
    directory: Path, target: Path, canary: str, rows: int | None = None, **extraction: Any
) -> tuple[Workflow, dict[str, Any]]:
    workflow = Workflow(directory / "run", demo_config(target, **extraction))
    workflow.config["compatibility"] = {"canary": canary}
    workflow.config["data"]["sources"][0]["limit"] = rows
    run = workflow.run("validate", timeout=1500)
    assert run.returncode == 0, run.output
    assert list(run.passes) == ["001/0"]
    ledger = run.passes["001/0"]
    assert ledger["model_loads"] == 1
    assert ledger["samples_extracted"] == len(workflow.stored()) == (rows or 48)
    return workflow, ledger


def test_in_float32_every_layer_equals_transformers(tiny_kimi: Path, tmp_path: Path) -> None:
    workflow, _ = validated(tmp_path, tiny_kimi, "off", rows=16, dtype="float32")
    proven = workflow.run("prove_target")
    assert proven.returncode == 0, proven.output
    reference = Reference.read(workflow.results / "reference.json")
    assert reference.status == "passed", reference.describe()
    compared = compare(workflow, LAYERS)
    assert max(error for one in compared for error in one.own()) < 1e-3
    assert min(error for one in compared for error in one.neighbours()) > 0.2, (
        "an off-by-one would go unnoticed"
    )


@pytest.mark.nightly  # three minutes of two cores
def test_two_workers_and_layer_ids_in_speculators_counting_give_the_same_layers(
    tiny_kimi: Path, tmp_path: Path
) -> None:
    ids = {"layers": [1, 3, 4, 7], "layer_convention": "speculators-0.3"}
    workflow, ledger = validated(tmp_path, tiny_kimi, "off", rows=16, tensor_parallel=2, **ids)
    assert ledger["layers"] == LAYERS
    assert (ledger["requested_layers"], ledger["layer_convention"]) == ([1, 3, 4, 7], "speculators-0.3")
    compared = compare(workflow, LAYERS)
    errors = [error for one in compared for error in one.own()]
    print(
        f"bfloat16, tensor parallel 2: median error {statistics.median(errors):.4f}, largest"
        f" {max(errors):.4f}"
    )
    assert statistics.median(errors) < 0.02
    assert max(errors) < 0.03
    assert min(error for one in compared for error in one.neighbours()) > 0.2


@pytest.mark.nightly  # eight workers on two cores are slow
def test_eight_workers_are_one_job(tiny_kimi: Path, tmp_path: Path) -> None:
    workflow, ledger = validated(tmp_path, tiny_kimi, "off", rows=6, tensor_parallel=8)
    engine_log = workflow.log("extract_pass/001/0.engine.log")
    assert all(f"Worker_TP{rank}" in engine_log for rank in range(8))
    errors = [error for one in compare(workflow, LAYERS) for error in one.own()]
    print(
        f"bfloat16, tensor parallel 8: median error {statistics.median(errors):.4f}, largest"
        f" {max(errors):.4f}, loaded in {ledger['load_s']:.0f} s"
    )
    assert statistics.median(errors) < 0.02
