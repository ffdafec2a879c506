"""Whatever is damaged between two runs heals within two, or is refused in words whose remedy works; never is
wrong data trained on, and never does the same failure come back for ever."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import damages
from integration.fixtures import fast_config, made_once
from integration.workflow import ROOT, Run, Workflow, conversation, write_jsonl

pytestmark = pytest.mark.slow

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
ASSEMBLED = {
    **EXTRACTED,
    "validation/00001.json": damages.VERDICT,
    "reference.json": damages.RECORD,
}
"""Files of a run whose training set is assembled."""
REMEDIES = (
    re.compile(r"(results/[^\s:;,']+)[^\n]*?;? ?(?:delete it|delete both) and run the same command again"),
    re.compile(r"delete (results/[^\s:;,']+) and run the same command again"),
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
        for path in (path for remedy in REMEDIES for path in remedy.findall(run.output)):
            remove(workflow.directory / path)
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


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(len(rounds(EXTRACTED))))
def test_every_kind_of_damaged_record_heals(finished: Workflow, number: int) -> None:
    check_extracted(finished, rounds(EXTRACTED)[number])


@pytest.mark.nightly
def test_every_kind_of_damage_to_gates_and_batch_records_heals_in_one_run(
    tmp_path: Path, tiny_llama: Path
) -> None:
    """Each kind meets a batch of its own."""
    config = fast_config(tiny_llama)
    config["tokenization"]["batch_tokens"] = 60
    workflow = Workflow(tmp_path / "run", config)
    count = max(len(damages.GATE), len(damages.BATCH_RECORD))
    write_jsonl(
        workflow.directory / "data.jsonl", [conversation(number) for number in range(100, 100 + count)]
    )
    made = workflow.run("extract")
    assert made.returncode == 0, made.output
    batches, before = sorted(workflow.batches()), workflow.written_at()
    assert len(batches) >= count
    for folder, kinds in (("batches", damages.GATE), ("records", damages.BATCH_RECORD)):
        for batch, damage in zip(batches, kinds.values(), strict=False):
            damage(workflow.results / f"extraction/{folder}/{batch}.json")
        run = workflow.run("extract")
        assert run.returncode == 0, run.output
        assert workflow.targets() == batches and workflow.written_at() == before
    assert workflow.run("extract").nothing_done


@pytest.fixture(scope="session")
def assembled(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Workflow:
    """A training set of as many samples as there are kinds of damage to one."""
    config = fast_config(tiny_llama)
    config["tokenization"]["batch_tokens"] = 1000

    def make(directory: Path) -> None:
        workflow = Workflow(directory, config)
        rows = [conversation(number) for number in range(100, 101 + len(SAMPLES))]
        write_jsonl(directory / "data.jsonl", rows)
        run = workflow.run("all")
        assert run.returncode == 0, run.output

    return Workflow(made_once(tmp_path_factory, "assembled", make), config)


@pytest.fixture
def finished_set(tmp_path: Path, assembled: Workflow) -> Workflow:
    """Its states are links to the store's, as in the original."""
    subprocess.run(["cp", "-a", str(assembled.directory), str(tmp_path / "run")], check=True)
    return Workflow(tmp_path / "run", assembled.config)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)


def quarantine_damaged(workflow: Workflow) -> subprocess.CompletedProcess[str]:
    """The remedy that is printed where states have changed."""
    command = [sys.executable, str(ROOT / "scripts/store.py"), "verify", "--quarantine"]
    return subprocess.run(command, cwd=workflow.directory, capture_output=True, text=True, check=False)


def assert_whole(workflow: Workflow, states: dict[Path, bytes]) -> None:
    """The set is what it was, and nothing is left to do."""
    assert {path: path.read_bytes() for path in states} == states
    verified = workflow.run("verify")
    assert verified.returncode == 0, verified.output
    assert workflow.run("all").nothing_done


def states_of(workflow: Workflow) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in workflow.stored_states()}


def damage_samples(workflow: Workflow, kinds: list[tuple[str, str]] = SAMPLES) -> None:
    """Each kind meets a sample of its own."""
    for (suffix, name), key in zip(kinds, workflow.all_keys(), strict=False):
        (states,) = workflow.directory.glob(f"results/store/*/??/{key}.safetensors")
        (damages.SIDECAR if suffix == ".json" else damages.STATES)[name](states.with_suffix(suffix))


def test_every_kind_of_damaged_sample_is_rejected_extracted_again_and_right(finished_set: Workflow) -> None:
    workflow, before = finished_set, states_of(finished_set)
    shutil.rmtree(workflow.results / "training_set")
    shutil.rmtree(workflow.results / "validation")
    damage_samples(workflow)
    first = workflow.run("all")
    assert "Traceback (most" not in first.output, first.output
    assert first.returncode != 0 and not (workflow.results / "training_set").exists()
    run = workflow.run("all")
    assert run.returncode == 0, run.output
    assert_whole(workflow, before)


def test_every_kind_of_sample_damaged_after_all_is_refused_and_the_remedy_works(
    finished_set: Workflow,
) -> None:
    """States of the set and the store are the same files."""
    workflow, before = finished_set, states_of(finished_set)
    # only validation knows the vocabulary; alone, this kind leaves the set as it is
    damage_samples(workflow, [one for one in SAMPLES if one != (".json", "greedy beyond")])
    refused = workflow.run("all")
    assert refused.returncode != 0 and "Traceback (most" not in refused.output
    assert "results/test/training_set is not as assembled: " in refused.output
    assert "first call `scripts/store.py verify --quarantine`" in refused.output
    assert "then delete the training set and run the same command again" in refused.output
    done = quarantine_damaged(workflow)
    assert done.returncode == 1 and "quarantined, and extracted again by the next run" in done.stderr
    shutil.rmtree(workflow.results / "training_set")
    healed = workflow.run("all")
    assert healed.returncode == 0, healed.output
    assert_whole(workflow, before)


@pytest.mark.nightly
def test_states_that_changed_after_validation_never_enter_a_set(finished_set: Workflow) -> None:
    """Whoever only deletes the refused set is stopped by its assembly; the run after that heals."""
    workflow, before = finished_set, states_of(finished_set)
    damages.flip(next(iter(before)))
    shutil.rmtree(workflow.results / "training_set")
    stopped = workflow.run("all")
    assert stopped.returncode != 0 and "Traceback (most" not in stopped.output
    assert "1 sample changed in results/store/" in stopped.output
    assert "the same command extracts what changed again" in stopped.output
    healed = workflow.run("all")
    assert healed.returncode == 0, healed.output
    assert sum(ledger["samples_extracted"] for ledger in healed.passes.values()) == 1
    assert_whole(workflow, before)


def check_assembled(workflow: Workflow, kinds: dict[str, str]) -> None:
    before = states_of(workflow)
    damage_all(workflow, ASSEMBLED, kinds)
    heal(workflow, "all")
    assert_whole(workflow, before)


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(len(rounds(ASSEMBLED))))
def test_every_kind_of_record_damaged_after_all_heals(finished_set: Workflow, number: int) -> None:
    check_assembled(finished_set, rounds(ASSEMBLED)[number])


def empty(directory: Path) -> None:
    for path in directory.iterdir():
        remove(path)


def replace_states(directory: Path) -> None:
    """By those of another row."""
    (path := directory / "hidden_states/hs_3.safetensors").unlink()
    shutil.copyfile(directory / "hidden_states/hs_2.safetensors", path)


SET: dict[str, Callable[[Path], object]] = {
    "states deleted": lambda directory: (directory / "hidden_states/hs_3.safetensors").unlink(),
    "states replaced": replace_states,
    "Arrow edited": lambda directory: damages.flip(next(directory.glob("data-*.arrow"))),
    "emptied": empty,
}


def test_a_damaged_training_set_is_refused_and_the_remedy_works(
    finished_set: Workflow, tmp_path: Path
) -> None:
    workflow, before = finished_set, states_of(finished_set)
    training_set = workflow.results / "training_set"
    shutil.copytree(training_set, tmp_path / "whole")
    for kind, damage in SET.items():
        shutil.rmtree(training_set)
        shutil.copytree(tmp_path / "whole", training_set)
        damage(training_set)
        refused = workflow.run("all")
        assert refused.returncode != 0, kind
        assert "results/test/training_set is not as assembled: " in refused.output, kind
        assert "delete the training set and run the same command again" in refused.output, kind
        assert "Traceback (most" not in refused.output, kind
    shutil.rmtree(training_set)
    healed = workflow.run("all")
    assert healed.returncode == 0, healed.output
    assert "validate_batch" not in healed.jobs
    assert_whole(workflow, before)


@pytest.fixture
def set_of_copies(finished_set: Workflow) -> Iterator[Workflow]:
    """Its store lies on another file system, so that nothing can be linked."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    store = finished_set.directory / "results/store"
    store.rename(aside := store.with_name("aside"))
    store.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256m", "tmpfs", str(store)], check=True)
    try:
        shutil.copytree(aside, store, dirs_exist_ok=True)
        shutil.rmtree(finished_set.results / "training_set")
        run = finished_set.run("all")
        assert run.returncode == 0, run.output
        yield finished_set
    finally:
        subprocess.run(["umount", str(store)], check=True)


@pytest.mark.nightly  # verify of a damaged set is a unit test, too
def test_a_damaged_copy_of_states_is_named_by_the_rule_verify(set_of_copies: Workflow) -> None:
    """Also where size and time are as they were."""
    workflow, before = set_of_copies, states_of(set_of_copies)
    training_set = workflow.results / "training_set"
    provenance = json.loads((training_set / "provenance.json").read_text())
    assert provenance["states"] == {"copy": len(before)}
    good = workflow.run("verify")
    assert good.returncode == 0, good.output
    damages.time_kept(damages.flip)(training_set / "hidden_states/hs_3.safetensors")
    assert workflow.run("all").nothing_done
    named = workflow.run("verify")
    assert named.returncode != 0
    assert "hidden_states/hs_3.safetensors does not have the checksum" in named.output
    assert "1 fault; where states have changed, first call" in named.output
    assert quarantine_damaged(workflow).returncode == 0, "the store's own are whole"
    shutil.rmtree(training_set)
    assert workflow.run("all").returncode == 0
    assert_whole(workflow, before)
