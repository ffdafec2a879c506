"""The target answers itself: passes of generation under real Snakemake, with a generator for fault injection.
What vLLM generates is tested in `test_generated_answers`."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from eagle3_data.generation.answers import Answers
from eagle3_data.generation.store import GenerationStore
from integration.fixtures import fast_config, made_once
from integration.workflow import FAKE_GENERATOR, Workflow, conversation, wait_for, write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def two_turns(number: int) -> dict[str, Any]:
    one = conversation(number)
    return {**one, "messages": [*one["messages"], {"role": "user", "content": f"And {number} minus 1?"}]}


def rows(count: int) -> list[dict[str, Any]]:
    return [two_turns(n) if n % 3 == 0 else conversation(n) for n in range(100, 100 + count)]


def asking_config(target: Path) -> dict[str, Any]:
    config = fast_config(target)
    config["tokenization"] = {"max_length": 512, "batch_tokens": 240}
    config["generation"] = {"responses": "target", "max_tokens": 60, "engine": FAKE_GENERATOR}
    return config


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Workflow:
    """Ten conversations that have yet to be answered."""

    def make(directory: Path) -> None:
        workflow = Workflow(directory, asking_config(tiny_llama))
        write_jsonl(workflow.directory / "data.jsonl", rows(10))
        run = workflow.run("results/test/generation/report.json")
        assert run.returncode == 0, run.output
        assert len(workflow.questions()) == 10

    return Workflow(made_once(tmp_path_factory, "asked", make), asking_config(tiny_llama))


@pytest.fixture
def asked(tmp_path: Path, planned: Workflow) -> Iterator[Workflow]:
    workflow = planned.copy(tmp_path / "run")
    yield workflow
    workflow.end()


def ledgers(workflow: Workflow) -> dict[str, dict[str, Any]]:
    paths = sorted(workflow.results.glob("generation/passes/*/[0-9]*.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def trained(workflow: Workflow) -> dict[str, list[int]]:
    """Token ids by sample id."""
    table = pq.read_table(workflow.results / "tokens/samples.parquet")
    return dict(zip(table["sample_id"].to_pylist(), table["input_ids"].to_pylist(), strict=True))


def test_failed_questions_are_asked_again_and_answered_ones_never(asked: Workflow) -> None:
    keys = list(asked.questions().values())
    deadly, refused = keys[2], keys[6]
    asked.set_faults({"kill": [deadly], "refuse": {refused: "not this one"}, "loop": [keys[8]]})
    run = asked.run("extract")
    assert run.returncode != 0
    first = ledgers(asked)["001"]
    assert first["samples_extracted"] == 8
    assert first["deaths"] == {deadly: 2}
    failed = {one["key"] for batch in first["batches"].values() for one in batch["failed"]}
    assert failed == {deadly, refused}
    assert "not this one" in run.output
    assert not (asked.results / "tokens").exists()
    assert "2 of 4 batches answered by the target" in run.output
    assert "1 sample: SampleError: not this one" in run.output
    assert "generate_pass" in run.output.rpartition("logs: ")[2]

    asked.set_faults({"loop": [keys[8]]})
    run = asked.run("extract")
    assert run.returncode == 0, run.output
    assert ledgers(asked)["002"]["samples_extracted"] == 2
    assert len(trained(asked)) == 9
    index = json.loads((asked.results / "tokens/batches.json").read_text())
    assert index["dropped"] == {"looping-answer": 1}
    assert "dropped by tokenization: 1 looping-answer" in run.output
    assert re.search(
        r"answers in 2 passes: \d+ ended by themselves, 1 cut by generation\.max_tokens \(1 of th", run.output
    )
    assert "the target's own answers" in (asked.results / "tokens/samples.html").read_text()
    shown = asked.status("--all")
    assert "answered" in shown.partition("batches answered by the target")[0]
    assert asked.targets() == sorted(asked.batches())
    assert asked.run("extract").nothing_done

    write_jsonl(asked.directory / "data.jsonl", rows(11))
    before = trained(asked)
    assert asked.run("results/test/tokens/batches.json").returncode == 0
    assert ledgers(asked)["003"]["samples_extracted"] == 1
    assert {name: ids for name, ids in trained(asked).items() if name in before} == before

    asked.config["generation"]["temperature"] = 0.5
    assert asked.run_pass("004", kind="generate")["samples_extracted"] == 11
    assert len(list(asked.directory.glob("results/generations/*/identity.json"))) == 2
    asked.config["generation"]["temperature"] = 0.0
    assert asked.run_pass("005", kind="generate")["samples_extracted"] == 0


def test_killed_again_and_again_a_pass_ends_with_the_same_answers(asked: Workflow) -> None:
    undisturbed = asked.copy(asked.directory.with_name("undisturbed"))
    assert undisturbed.run_pass(kind="generate")["samples_extracted"] == 10
    dice = random.Random(15)
    asked.set_faults({"sleep_s": 0.1})
    for number in range(1, 5):
        kept = answers(asked)
        process = asked.start_pass(f"{number:03d}", "generate")
        if number > 1:  # at 1, while it may still be starting
            wait_for(lambda kept=kept: len(answers(asked)) > len(kept))
        time.sleep(dice.uniform(0, 0.3))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert kept.items() <= answers(asked).items()
        assert not asked.ledger(f"{number:03d}", "generate").exists()
    kept = answers(asked)
    assert 3 <= len(kept) < 10
    asked.set_faults({})
    assert asked.run_pass("005", kind="generate")["samples_extracted"] == 10 - len(kept)
    assert answers(asked) == answers(undisturbed)
    assert not list(asked.directory.glob("results/generations/*/incoming/*"))
    again = asked.run_pass("006", kind="generate")
    assert (again["samples_extracted"], again["model_loads"]) == (0, 0)
    assert {one["state"] for one in again["batches"].values()} == {"complete"}


def test_a_stopped_pass_keeps_what_is_answered(asked: Workflow) -> None:
    asked.set_faults({"hold": list(asked.questions().values())[4:]})
    process = asked.start_pass("001", "generate")
    wait_for(lambda: len(answers(asked)) >= 4)
    process.terminate()
    assert process.wait(60) == 0
    ledger = json.loads(asked.ledger("001", "generate").read_text())
    assert ledger["samples_extracted"] == 4
    assert "stopped by SIGTERM" in ledger["failure"]["message"]
    assert sum(batch["not_reached"] for batch in ledger["batches"].values()) == 6
    assert len(answers(asked)) == 4


@pytest.mark.nightly  # it waits for the walltime; what stops a pass is common to all kinds of pass
def test_a_pass_stops_before_the_walltime_ends_and_a_later_one_goes_on(
    asked: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked.config["extraction"]["stop_before_end_s"] = 30
    asked.config["generation"]["in_flight"] = 2
    asked.set_faults({"hold": list(asked.questions().values())[4:]})
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + 75))
    process = asked.start_pass("001", "generate")
    wait_for(lambda: len(answers(asked)) >= 4)
    log = asked.directory / "pass.log"
    wait_for(lambda: "stopping: the job's walltime ends in" in log.read_text())
    asked.set_faults({})
    assert process.wait(60) == 0
    ledger = json.loads(asked.ledger("001", "generate").read_text())
    assert "walltime ends in" in ledger["failure"]["message"]
    assert ledger["samples_extracted"] == 6, "the engine finishes the conversations it has"
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    assert asked.run_pass("002", kind="generate")["samples_extracted"] == 4


@pytest.mark.parametrize("reserve_gib", [0.0, 0.01], ids=["full", "reserve"])
def test_a_full_disk_stops_the_pass_cleanly_and_it_goes_on_when_there_is_room(
    asked: Workflow, small_disk: Path, reserve_gib: float
) -> None:
    store = small_disk / "answers"
    asked.config["generation"] |= {"store": str(store), "in_flight": 1, "max_tokens": 400}
    asked.config["extraction"]["disk_reserve_gib"] = reserve_gib
    keys = list(asked.questions().values())
    asked.set_faults({"hold": keys[4:]})
    process = asked.start_pass("001", "generate")
    wait_for(lambda: len(answers(asked, store=store)) >= 4)
    with contextlib.suppress(OSError):
        (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free + 4096))
    asked.set_faults({"cut": keys, "sleep_s": 0.5})  # longer than what may be left of a page
    assert process.wait(60) == 0, (asked.directory / "pass.log").read_text()
    ledger = json.loads(asked.ledger("001", "generate").read_text())
    assert ledger["failure"]["class"] == "StorageError"
    assert "make room" in ledger["failure"]["message"]
    assert "failed" not in {batch["state"] for batch in ledger["batches"].values()}
    kept = answers(asked, store=store)
    assert len(kept) == ledger["samples_extracted"] < 10
    (small_disk / "ballast").unlink()
    asked.set_faults({})
    assert asked.run_pass("002", kind="generate")["samples_extracted"] == 10 - len(kept)
    assert kept.items() <= answers(asked, store=store).items()
    assert not list(store.glob("*/incoming/*"))


def test_several_answers_to_a_question_are_samples_of_their_own(asked: Workflow) -> None:
    write_jsonl(asked.directory / "data.jsonl", rows(4))
    asked.config["generation"] |= {"n": 2, "temperature": 1.0}
    run = asked.run("extract")
    assert run.returncode == 0, run.output
    assert ledgers(asked)["001"]["samples_extracted"] == 8
    ids = trained(asked)
    assert len(ids) == 8
    pairs = [(ids[name], ids[f"{name[:-1]}2"]) for name in ids if name.endswith("#1")]
    assert len(pairs) == 4
    assert all(one != other for one, other in pairs)
    assert asked.run("extract").nothing_done


def test_a_hanging_engine_is_restarted_and_one_that_computes_long_is_not(asked: Workflow) -> None:
    key = list(asked.questions().values())[1]
    asked.config["extraction"]["stall_timeout_s"] = 9
    asked.set_faults({"slow_s": {key: 20}})
    ledger = asked.run_pass("001", kind="generate")
    assert (ledger["model_loads"], ledger["samples_extracted"]) == (1, 10)
    asked.config["generation"]["seed"] = 1
    asked.set_faults({"hang": [key]})
    ledger = asked.run_pass("002", kind="generate")
    assert (ledger["model_loads"], ledger["samples_extracted"]) == (3, 9)
    assert ledger["deaths"] == {key: 2}


def test_of_many_suspects_a_deadly_question_is_found_in_groups(asked: Workflow) -> None:
    write_jsonl(asked.directory / "data.jsonl", [conversation(number) for number in range(100, 200)])
    assert asked.run("results/test/prompts/batches.json").returncode == 0
    keys = list(asked.questions().values())
    asked.set_faults({"kill": [keys[10]]})
    ledger = asked.run_pass("001", kind="generate")
    assert (ledger["samples_extracted"], ledger["model_loads"]) == (99, 4)
    assert ledger["deaths"] == {keys[10]: 3}
    log = (asked.directory / "pass.log").read_text()
    assert re.findall(r"engine died while it had (\d+) sample", log) == ["90", "9", "1"]


def test_the_seed_changes_sampled_answers_and_stripes_share_the_questions(asked: Workflow) -> None:
    asked.config["generation"] |= {"temperature": 1.0}
    asked.run_pass("001", kind="generate")
    first = answers(asked)
    asked.config["generation"]["seed"] = 7
    asked.run_pass("002", kind="generate")
    other = answers(asked, "002")
    assert first.keys() == other.keys()
    assert first != other
    asked.config["generation"]["seed"] = 8
    asked.config["extraction"]["jobs"] = 2
    ledger = asked.run_pass("003", kind="generate")
    assert 0 < ledger["samples_extracted"] < 10
    assert sorted(ledger["batches"]) == ["00000", "00002"]


def answers(workflow: Workflow, number: str = "001", store: Path | None = None) -> dict[str, Answers]:
    """Under the generation id of a pass, or where it has no ledger yet, under the only one."""
    path = workflow.ledger(number, "generate")
    root = store or workflow.directory / "results/generations"
    if path.exists():
        name = json.loads(path.read_text())["extraction_id"]
    else:
        name = next((one.name for one in root.iterdir()), "") if root.exists() else ""
    if not name:
        return {}
    reader, keys = (store_of := GenerationStore(root, name)).reader(), store_of.keys()
    return {key: found for key in keys if (found := reader.find(key))}
