"""Engines that are right in the canary and wrong for the target: what catches each fault, by name, before
anything is assembled."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.samples import SampleFile
from integration.fixtures import demo_config
from integration.workflow import ROOT, Run, Workflow, write_jsonl

pytestmark = pytest.mark.slow

TRANSFORMERS, VLLM = "company_transformers:SpoilingTransformersEngine", "company_vllm:SpoilingVllmEngine"
SAMPLES = 10
SYSTEM = "You are a patient teacher, and answer in whole sentences."


def conversations() -> list[dict[str, Any]]:
    """Of the demo, of more than 128 tokens, the longest first; all begin with the same ones, which are fewer
    than 64."""
    lines = (ROOT / "config/demo/conversations.jsonl").read_text(encoding="utf-8").splitlines()
    plain = [
        row for row in map(json.loads, lines) if row["messages"] and row["messages"][0]["role"] == "user"
    ]
    plain.sort(key=lambda row: sum(len(message["content"]) for message in row["messages"]))
    system = {"role": "system", "content": SYSTEM}
    return [{**row, "messages": [system, *row["messages"]]} for row in plain[: -SAMPLES - 1 : -1]]


def tokenized(directory: Path, target: Path, engine: str) -> Workflow:
    config = demo_config(target, engine=engine)
    config["data"]["sources"] = [{"path": "data.jsonl"}]
    config["tokenization"]["batch_tokens"] = 1500
    config["validation"] = {"replay_samples": SAMPLES}
    if engine == TRANSFORMERS:
        del config["extraction"]["engine_arguments"]
    workflow = Workflow(directory, config)
    write_jsonl(directory / "data.jsonl", conversations())
    run = workflow.run("results/demo/compatibility/report.json")
    assert run.returncode == 0, run.output
    return workflow


def lengths(workflow: Workflow) -> dict[str, int]:
    samples = SampleFile(workflow.results / "tokens/samples.parquet").all_samples()
    return {sample.key: len(sample.token_ids) for sample in samples}


def replayed(run: Run) -> dict[str, str]:
    """How each sample of which the replay says that it differs does."""
    (ledger,) = run.passes.values()
    replay = ledger["replay"]
    assert (len(replay["samples"]), replay["unfinished"]) == (SAMPLES, "")
    assert ledger["model_loads"] == 1, "the canary passed"
    return replay["failed"]


@pytest.mark.parametrize(
    "engine",
    [
        TRANSFORMERS,
        pytest.param(
            VLLM, marks=[pytest.mark.xdist_group("vllm"), pytest.mark.timeout(1200), pytest.mark.nightly]
        ),
    ],
    ids=["transformers", "vllm"],
)
def test_what_only_the_company_of_others_does_is_named_by_the_replay(
    tmp_path: Path, tiny_llama: Path, engine: str
) -> None:
    """vLLM has its prefix cache on, and the fault spoils what is cached: a replay that read it would find the
    same."""
    workflow = tokenized(tmp_path / "run", tiny_llama, engine)
    tokens = lengths(workflow)
    mixed, chunk, slots = sorted(tokens, key=lambda key: tokens[key])[3:6]
    assert tokens[mixed] > 128
    workflow.faults = {"mixed": [mixed], "chunk": [chunk], "slots": [slots]}
    run = workflow.run("all")
    assert run.returncode != 0
    failed = replayed(run)
    assert set(failed) == {mixed, chunk, slots}
    assert "likely: states of another request: requests were mixed up in the batch" in failed[mixed]
    assert re.search(r"slot 0 \(layer 2\): 64 of \d+ tokens, 64 to 127, differ by 1\d\d%", failed[chunk])
    assert "likely: a chunk of the sample was lost" in failed[chunk]
    assert re.search(
        r"^slot 1 \(layer 4\): .* they are what slot 2 \(layer 5\) should hold; slot 2 \(layer 5\): .* they"
        r" are what slot 1 \(layer 4\) should hold; likely: the wrong layer was captured",
        failed[slots],
    )
    assert workflow.stored() == {}
    assert not (workflow.results / "training_set").exists()
    assert not list(workflow.results.glob("validation/*.json"))
    assert "3 of 10 samples replayed alone came out differently" in run.output
    if engine == VLLM:
        log = workflow.log("extract_pass/001/0.engine.log")
        assert "enable_prefix_caching=True" in log


@pytest.mark.nightly  # test_reference has swapped slots named every day
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("above", "slot 2 (layer 5) holds the states after layer 6"),
        ("swap", "slots 1 and 2 (layers 4 and 5) are swapped"),
    ],
)
def test_what_the_engine_repeats_is_named_by_the_reference(
    tmp_path: Path, tiny_llama: Path, fault: str, told: str
) -> None:
    """Among others or alone, it does the same: the replay sees nothing."""
    workflow = tokenized(tmp_path / "run", tiny_llama, TRANSFORMERS)
    workflow.faults = {fault: True}
    run = workflow.run("all")
    assert run.returncode != 0
    assert replayed(run) == {}
    assert told in (workflow.results / "reference.failed.json").read_text()
    assert told in run.output
    assert not (workflow.results / "training_set").exists()
