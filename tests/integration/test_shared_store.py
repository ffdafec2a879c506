"""Workflows that run at the same time and share a store share the work: nothing is computed twice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_data.config import load_config
from eagle3_data.passes.planning import Plan
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.system.modes import current_umask
from integration.workflow import PATIENCE_S, Workflow, wait_for

pytestmark = pytest.mark.slow


class Sharing(list[Workflow]):
    """Runs of the same ten samples, each in a directory of its own, with few in flight and one store."""

    def __init__(self, directory: Path, template: Workflow, number: int) -> None:
        super().__init__(template.copy(directory / f"run-{name}") for name in range(number))
        for workflow in self:
            workflow.config["tokenization"]["max_length"] = (
                128  # far above the longest; bounds what is in flight
            )
            workflow.config["extraction"] |= {"store": str(directory / "store"), "in_flight_tokens": 128}
        self.store = directory / "store"

    def computed(self, workflow: Workflow) -> list[str]:
        log = workflow.directory / "engine.log"
        return re.findall(r"^computing (\w+)$", log.read_text(), re.MULTILINE) if log.exists() else []

    def claims(self) -> list[Path]:
        return list(self.store.glob("*/claims/*"))

    def begun(self, process: subprocess.Popen[bytes]) -> set[str]:
        """What is with a pass now."""
        return {claim.name for claim in self.claims() if os.readlink(claim).endswith(f"-{process.pid}")}

    def assert_all_complete(self, workflow: Workflow) -> None:
        ledger = json.loads(workflow.ledger("001").read_text())
        assert {batch["state"] for batch in ledger["batches"].values()} == {"complete"}
        assert sorted(ledger["batches"]) == sorted(workflow.batches())


@pytest.fixture
def two(tmp_path: Path, tokenized_template: Workflow) -> Iterator[Sharing]:
    yield from sharing(tmp_path, tokenized_template, 2)


@pytest.fixture
def four(tmp_path: Path, tokenized_template: Workflow) -> Iterator[Sharing]:
    yield from sharing(tmp_path, tokenized_template, 4)


def sharing(directory: Path, template: Workflow, number: int) -> Iterator[Sharing]:
    runs = Sharing(directory, template, number)
    yield runs
    for workflow in runs:
        workflow.end()


def test_what_one_pass_has_begun_another_leaves_to_it(two):
    first, second = two
    first.hold_all_but(0)
    slow = first.start_pass()
    wait_for(lambda: two.begun(slow))
    fast = second.start_pass()
    wait_for(lambda: set(two.computed(second)) == set(second.all_keys()) - two.begun(slow))
    assert len(two.computed(second)) > 1
    assert fast.poll() is None, "it waits for what the other has begun"
    first.set_faults({})
    assert (slow.wait(PATIENCE_S), fast.wait(PATIENCE_S)) == (0, 0)
    assert sorted(two.computed(first) + two.computed(second)) == sorted(first.all_keys())
    assert "is extracting some of the same samples" in (second.directory / "pass.log").read_text()
    for workflow in two:
        two.assert_all_complete(workflow)
    assert two.claims() == []


def test_what_a_killed_pass_had_begun_is_taken_over(two):
    first, second = two
    first.hold_all_but(0)
    killed = first.start_pass()
    wait_for(lambda: two.begun(killed))
    taking_over = second.start_pass()
    wait_for(lambda: set(two.computed(second)) == set(second.all_keys()) - two.begun(killed))
    os.killpg(killed.pid, signal.SIGKILL)
    assert taking_over.wait(PATIENCE_S) == 0
    assert sorted(two.computed(second)) == sorted(second.all_keys())
    two.assert_all_complete(second)
    assert two.claims() == []


def test_four_at_once_compute_every_sample_once(four):
    for workflow in four:
        workflow.set_faults({"sleep_s": 0.1})
    passes = [workflow.start_pass() for workflow in four]
    assert [process.wait(PATIENCE_S) for process in passes] == [0, 0, 0, 0]
    assert sorted(key for workflow in four for key in four.computed(workflow)) == sorted(four[0].all_keys())
    for workflow in four:
        four.assert_all_complete(workflow)


def test_all_that_a_run_writes_follows_the_umask(finished_template: Workflow, tiny_llama: Path) -> None:
    umask = current_umask()
    for place in (finished_template.directory / "results", finished_template.directory / "logs", tiny_llama):
        for path in (place, *place.rglob("*")):
            assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~umask, path


def test_a_private_run_keeps_what_it_writes_to_its_owner_and_makes_nothing_again(fast: Workflow) -> None:
    places = [fast.directory / "results", fast.directory / "logs"]
    before = {path for place in places for path in place.rglob("*")}
    fast.config["private"] = True
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert not {"tokenize_dataset", "describe_target", "check_compatibility"} & set(run.jobs)
    written = {path for place in places for path in place.rglob("*")} - before
    assert len([path for path in written if path.suffix == ".safetensors"]) == 10
    for path in written:
        assert mode(path) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("store", ["/dev/null", "data.jsonl/below", "shelf", "results"])
def test_a_place_that_cannot_be_used_is_named_before_anything_is_planned(fast: Workflow, store: str) -> None:
    if store == "results":
        named = shutil.rmtree(fast.results) or fast.results
    elif store == "shelf":
        (identity,) = {Plan(load_config(fast.config), RunPaths(fast.results)).extraction_id()}
        named = fast.directory / "results/store" / identity / "ab"
        named.parent.mkdir(parents=True)
    else:
        fast.config["extraction"]["store"] = store
        named = Path("/dev/null") if store == "/dev/null" else fast.directory / "data.jsonl"
    if store in ("shelf", "results"):
        named.write_text("")
    run = fast.run("-n", "extract")
    assert run.returncode == 1
    assert f"{named} is a file where a directory is needed; move it away, or " in run.output
    assert "Traceback" not in run.output


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
