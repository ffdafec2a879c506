"""Whatever is damaged between two runs heals within two, or is refused in words whose remedy works; never is
wrong data trained on, and never does the same failure come back for ever."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import damages
from integration.fixtures import fast_config
from integration.workflow import ROOT, Run, Workflow, conversation, write_jsonl

pytestmark = pytest.mark.slow

REAL_STATES = "faulty_transformers:FaultyTransformersEngine"
SAMPLES = [
    *((".json", name) for name in damages.SIDECAR),
    *((".safetensors", name) for name in damages.STATES),
]
"""Suffix and kind: each damages a sample of its own."""
EXTRACTED = {
    "target.json": damages.RECORD,
    "tokens/batches.json": damages.INDEX,
    "tokens/samples.parquet": damages.TABLE,
    "compatibility/report.json": damages.RECORD,
    "extraction/records/00000.json": damages.BATCH_RECORD,
    "extraction/passes/001/0.json": damages.LEDGER,
    "extraction/batches/00001.json": damages.GATE,
}
"""Files of a run that is extracted."""
REMEDY = re.compile(
    r"(results/[^\s:;,']+)[^\n]*?;? ?(?:delete it|delete both) and run the same command again"
)


def rounds(tables: dict[str, dict[str, damages.Damage]]) -> list[dict[str, str]]:
    """One kind of damage to each file at once, until all were met."""
    longest = max(len(table) for table in tables.values())
    return [
        {file: list(table)[number % len(table)] for file, table in tables.items()}
        for number in range(longest)
    ]


def heal(workflow: Workflow, target: str) -> Run:
    """Run until the target is there, at most twice; what a refusal says to delete is deleted between."""
    run = workflow.run(target)
    if run.returncode != 0:
        assert "Traceback (most" not in run.output, run.output
        for path in REMEDY.findall(run.output):
            damaged = workflow.directory / path
            shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink(missing_ok=True)
        run = workflow.run(target)
    assert run.returncode == 0, run.output
    return run


def damage_all(
    workflow: Workflow, tables: dict[str, dict[str, damages.Damage]], kinds: dict[str, str]
) -> None:
    for file, kind in kinds.items():
        tables[file][kind](workflow.results / file)


def check_extracted(workflow: Workflow, kinds: dict[str, str]) -> None:
    before = workflow.written_at()
    damage_all(workflow, EXTRACTED, kinds)
    heal(workflow, "extract")
    assert workflow.targets() == sorted(workflow.batches())
    assert workflow.written_at() == before, "no sample is extracted a second time"
    assert workflow.run("extract").nothing_done


def test_damaged_records_of_a_run_heal(finished: Workflow) -> None:
    check_extracted(finished, rounds(EXTRACTED)[3])


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(len(rounds(EXTRACTED))))
def test_every_kind_of_damaged_record_heals(finished: Workflow, number: int) -> None:
    check_extracted(finished, rounds(EXTRACTED)[number])


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Workflow:
    """A training set of as many samples as there are kinds of damage to one."""
    directory = tmp_path_factory.mktemp("assembled") / "run"
    config = fast_config(tiny_llama)
    config["extraction"]["engine"] = REAL_STATES
    config["tokenization"]["batch_tokens"] = 400
    workflow = Workflow(directory, config)
    write_jsonl(directory / "data.jsonl", [conversation(number) for number in range(100, 101 + len(SAMPLES))])
    run = workflow.run("all")
    assert run.returncode == 0, run.output
    return workflow


@pytest.fixture
def finished_set(tmp_path: Path, assembled: Workflow) -> Workflow:
    return assembled.copy(tmp_path / "run")


def verify_set(workflow: Workflow) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(ROOT / "scripts/verify_training_set.py"),
        str(workflow.results / "training_set"),
    ]
    return subprocess.run(
        [*command, "--results", str(workflow.results)], capture_output=True, text=True, check=False
    )


def test_every_kind_of_damaged_sample_is_rejected_extracted_again_and_right(finished_set: Workflow) -> None:
    workflow = finished_set
    before = {path: path.read_bytes() for path in workflow.stored_states()}
    shutil.rmtree(workflow.results / "training_set")
    shutil.rmtree(workflow.results / "validation")
    keys = workflow.all_keys()
    for (suffix, name), key in zip(SAMPLES, keys, strict=False):
        states = next(path for path in before if path.stem == key)
        (damages.SIDECAR if suffix == ".json" else damages.STATES)[name](states.with_suffix(suffix))
    first = workflow.run("all")
    assert "Traceback (most" not in first.output, first.output
    assert not (workflow.results / "training_set").exists()
    run = first if first.returncode == 0 else workflow.run("all")
    assert run.returncode == 0, run.output
    assert {path: path.read_bytes() for path in before} == before
    assert verify_set(workflow).returncode == 0
    assert workflow.run("all").nothing_done


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: (directory / "hidden_states/hs_3.safetensors").unlink(),
        lambda directory: damages.flip(next(directory.glob("data-*.arrow"))),
        pytest.param(empty, marks=pytest.mark.nightly),
    ],
    ids=["states deleted", "Arrow edited", "emptied"],
)
def test_a_damaged_training_set_is_refused_and_the_remedy_works(
    finished_set: Workflow, damage: Callable[[Path], object]
) -> None:
    training_set = finished_set.results / "training_set"
    damage(training_set)
    run = finished_set.run("all")
    assert run.returncode != 0
    assert "results/test/training_set is not as assembled: " in run.output
    assert "Delete it and run the same command again" in run.output and "Traceback (most" not in run.output
    assert verify_set(finished_set).returncode == 1
    shutil.rmtree(training_set)
    healed = finished_set.run("all")
    assert healed.returncode == 0, healed.output
    assert healed.jobs.count("validate_batch") == 0
    assert verify_set(finished_set).returncode == 0
