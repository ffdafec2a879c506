"""What a user reads at a run's end, and from another terminal: counts of the plan at hand, the true cause,
the command that was given."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from eagle3_data.records import write_json
from integration.workflow import PATIENCE_S, Run, Workflow, wait_for

pytestmark = pytest.mark.slow


def start_loading(workflow: Workflow) -> subprocess.Popen[str]:
    """A run whose pass loads a model, and would forever."""
    workflow.faults = {"hold_start": True}
    snakemake = workflow.start("extract")
    wait_for(lambda: ": loading for" in workflow.status())
    return snakemake


def kill_the_pass(workflow: Workflow, snakemake: subprocess.Popen[str]) -> str:
    """As the kernel does where memory is short. Returns the run's last lines."""
    (lease,) = workflow.results.glob("extraction/running/*-of-*.json")
    os.kill(json.loads(lease.read_text())["pid"], signal.SIGKILL)
    output = snakemake.communicate(timeout=PATIENCE_S)[0]
    assert snakemake.returncode != 0
    return output.rpartition("\nresults/")[2]


def last_lines(run: Run) -> str:
    return run.output.rpartition("\nresults/")[2]


def command_in(told: str) -> str:
    return told.rpartition("rerun only what is missing:\n    ")[2].partition("\n")[0]


def test_what_another_plan_extracted_is_never_claimed(finished: Workflow) -> None:
    layers = finished.config["extraction"].get("layers")
    finished.config["extraction"]["layers"] = [1, 2, 3, 8]
    snakemake = start_loading(finished)
    assert "0 of 5 batches extracted" in finished.status()
    for told in (kill_the_pass(finished, snakemake), finished.status()):
        assert "0 of 5 batches extracted" in told
        assert "pass 002 ended without a ledger (killed, probably out of memory); see " in told
        assert "logs/test/extract_pass/002\n" in told
        assert command_in(told).endswith(" extract")
    finished.config["extraction"]["layers"] = [1, 2, 3, 99]
    refused = last_lines(finished.run("extract"))
    assert "0 of 5 batches extracted" in refused
    assert "layer-out-of-range: layer id 99 is outside 0..8" in refused
    assert command_in(refused).endswith(" extract")
    finished.config["extraction"]["layers"] = layers
    assert "5 of 5 batches extracted" in finished.run("status").output


def test_a_killed_pass_is_not_reported_as_what_the_one_before_it_met(fast: Workflow) -> None:
    fast.faults = {"refuse": {fast.keys("00002")[0]: "an old cause"}}
    failed = last_lines(fast.run("extract"))
    assert "an old cause" in failed
    assert command_in(fast.status()) == f"cd {fast.directory} && {command_in(failed)}"
    assert "--configfile config.yaml" in command_in(failed)
    snakemake = start_loading(fast)
    for told in (kill_the_pass(fast, snakemake), fast.status(), fast.run("status").output):
        assert "4 of 5 batches extracted" in told
        assert "pass 002 ended without a ledger" in told
        assert "an old cause" not in told


def test_an_assembly_that_fails_says_where_to_look_and_what_to_call(finished: Workflow) -> None:
    extraction_id = json.loads(finished.ledger("001").read_text())["extraction_id"]
    for path in finished.results.glob("extraction/batches/*.json"):
        gate = json.loads(path.read_text())  # what the fake engine wrote could not be proven
        verdict = {"extraction_id": extraction_id, "tokens": 1, "size_bytes": 1, "rejected": {}}
        write_json(finished.results / "validation" / path.name, gate | verdict)
    finished.config["training_set"] = {"draft_vocab_size": 10**6}
    run = finished.run("all")
    assert run.returncode != 0
    assert sorted(run.jobs[:-1]) == ["check_compatibility", "prove_target"]
    assert run.jobs[-1] == "assemble_training_set"  # as the check, it reads the section
    told = last_lines(run)
    assert "5 of 5 batches extracted, 5 validated" in told
    assert "logs: logs/test/assemble_training_set.log\n" in told
    assert "draft_vocab_size" in finished.log("assemble_training_set.log")
    assert command_in(told).endswith(" all")
