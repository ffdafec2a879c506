"""The target answers itself: passes of generation under real Snakemake, with a generator for fault injection.
What vLLM generates is tested in `test_generated_answers`."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from integration.fixtures import fast_config
from integration.workflow import Workflow, conversation, wait_for, write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FAKE_GENERATOR = "fake_generator:FakeGenerator"


def two_turns(number: int) -> dict[str, Any]:
    one = conversation(number)
    return {**one, "messages": [*one["messages"], {"role": "user", "content": f"And {number} minus 1?"}]}


def rows(count: int) -> list[dict[str, Any]]:
    return [two_turns(n) if n % 3 == 0 else conversation(n) for n in range(100, 100 + count)]


@pytest.fixture
def asked(tmp_path: Path, tiny_llama: Path) -> Workflow:
    workflow = Workflow(tmp_path / "run", fast_config(tiny_llama))
    workflow.config["tokenization"] = {"max_length": 512, "batch_tokens": 240}
    workflow.config["generation"] = {"responses": "target", "max_tokens": 60, "engine": FAKE_GENERATOR}
    write_jsonl(workflow.directory / "data.jsonl", rows(10))
    yield workflow
    workflow.end()


def questions(workflow: Workflow) -> dict[str, str]:
    """Keys by sample id."""
    table = pq.read_table(workflow.results / "prompts/prompts.parquet", columns=["sample_id", "key"])
    return dict(zip(*(table[name].to_pylist() for name in ("sample_id", "key")), strict=True))


def ledgers(workflow: Workflow) -> dict[str, dict[str, Any]]:
    paths = sorted(workflow.results.glob("generation/passes/*/[0-9]*.json"))
    return {path.parent.name: json.loads(path.read_text()) for path in paths}


def trained(workflow: Workflow) -> dict[str, list[int]]:
    """Token ids by sample id."""
    table = pq.read_table(workflow.results / "tokens/samples.parquet")
    return dict(zip(table["sample_id"].to_pylist(), table["input_ids"].to_pylist(), strict=True))


def test_failed_questions_are_asked_again_and_answered_ones_never(asked: Workflow) -> None:
    assert asked.run("results/test/prompts/batches.json").returncode == 0
    keys = list(questions(asked).values())
    assert len(keys) == 10
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
    assert asked.targets() == sorted(asked.batches())
    assert asked.run("extract").nothing_done

    write_jsonl(asked.directory / "data.jsonl", rows(11))
    before = trained(asked)
    run = asked.run("extract")
    assert run.returncode == 0, run.output
    assert ledgers(asked)["003"]["samples_extracted"] == 1
    assert {name: ids for name, ids in trained(asked).items() if name in before} == before
    assert len(run.passes) == 1

    asked.config["generation"]["temperature"] = 0.5
    assert asked.run("results/test/tokens/batches.json").returncode == 0
    assert ledgers(asked)["004"]["samples_extracted"] == 11
    assert len(list(asked.directory.glob("results/generations/*/identity.json"))) == 2
    asked.config["generation"]["temperature"] = 0.0
    assert asked.run("results/test/tokens/batches.json").returncode == 0
    assert len(ledgers(asked)) == 4 or ledgers(asked)["005"]["samples_extracted"] == 0
    assert trained(asked).items() >= before.items()


def test_what_a_killed_pass_answered_is_kept_and_the_rest_is_the_same(asked: Workflow) -> None:
    undisturbed = asked.copy(asked.directory.with_name("undisturbed"))
    assert undisturbed.run("results/test/tokens/batches.json").returncode == 0
    assert asked.run("results/test/prompts/batches.json").returncode == 0
    keys = list(questions(asked).values())
    asked.set_faults({"hold": keys[6:]})
    snakemake = asked.start("results/test/tokens/batches.json")
    wait_for(lambda: len(journal_of(asked)) >= 6)
    os.killpg(snakemake.pid, signal.SIGKILL)
    snakemake.wait()
    asked.set_faults({})
    wait_for(lambda: not running(asked))
    shutil.rmtree(asked.directory / ".snakemake/locks", ignore_errors=True)
    run = asked.run("results/test/tokens/batches.json", "--rerun-incomplete")
    assert run.returncode == 0, run.output
    done = sum(ledger["samples_extracted"] for ledger in ledgers(asked).values())
    assert done == 4
    assert trained(asked) == trained(undisturbed)
    assert journal_of(asked) == []


def journal_of(workflow: Workflow) -> list[bytes]:
    return [
        line
        for path in workflow.directory.glob("results/generations/*/incoming/*/answers.jsonl")
        for line in path.read_bytes().splitlines()
    ]


def running(workflow: Workflow) -> bool:
    import psutil

    return any(
        "generate_pass.py" in " ".join(process.info["cmdline"] or ())
        and str(workflow.directory) in (process.info["cwd"] or "")
        for process in psutil.process_iter(["cmdline", "cwd"])
    )
