"""The replay at the end of a pass: what it does to a pass whose samples come out differently alone, and that
whatever ends it leaves nothing behind."""

from __future__ import annotations

import os
import signal

import pytest

from integration.workflow import PATIENCE_S, Workflow, wait_for

pytestmark = pytest.mark.slow


def quarantined(workflow: Workflow) -> set[str]:
    return {path.name[:32] for path in workflow.directory.glob("results/store/*/quarantine/*.safetensors")}


def leftovers(workflow: Workflow) -> list[object]:
    return [
        *workflow.directory.glob("results/store/*/incoming/*"),
        *workflow.results.glob("validation/rejected/*"),
    ]


def by_length(workflow: Workflow) -> list[str]:
    from eagle3_data.samples import SampleFile

    samples = SampleFile(workflow.results / "tokens/samples.parquet").all_samples()
    return [sample.key for sample in sorted(samples, key=lambda sample: len(sample.token_ids))]


def test_nothing_of_a_pass_counts_whose_replay_differs_and_the_next_one_extracts_it_again(
    fast: Workflow,
) -> None:
    wrong = by_length(fast)[-1]
    fast.faults = {"wrong": {wrong: "other"}}
    run = fast.run("extract")
    assert run.returncode != 0
    ledger = run.passes["001/0"]
    assert set(ledger["replay"]["failed"]) == {wrong}
    assert len(ledger["replay"]["samples"]) == 8
    assert ledger["replay"]["unfinished"] == ""
    assert "complete" not in {outcome["state"] for outcome in ledger["batches"].values()}
    assert (fast.stored(), fast.targets()) == ({}, [])
    assert quarantined(fast) == set(fast.all_keys())
    assert not list(fast.results.glob("extraction/records/*"))
    assert not leftovers(fast)
    failure = fast.failure_records()[wrong]["failure"]
    assert "mixed up in the batch" in failure["message"]
    assert "max_num_seqs: 1" in failure["remedy"]
    assert "1 of 8 samples replayed alone came out differently" in run.output
    assert "to do: extraction.engine_arguments: {max_num_seqs: 1}" in run.output
    fast.faults = {}
    again = fast.run("extract")
    assert again.returncode == 0, again.output
    assert again.passes["002/0"]["samples_extracted"] == 10
    assert again.passes["002/0"]["replay"]["failed"] == {}
    assert "proof: replay: 8 samples" in again.output
    assert fast.run("extract").nothing_done


def test_a_pass_that_is_killed_after_a_difference_leaves_the_rest_to_the_next(fast: Workflow) -> None:
    first, *_, last = by_length(fast)
    fast.config["validation"] = {"replay_samples": 10}
    fast.faults = {"wrong": {first: "other"}, "hold": [f"{last} again"]}
    supervisor = fast.start_pass()
    wait_for(lambda: len(list(fast.results.glob("validation/rejected/*.json"))) == 5)
    wait_for(lambda: list(fast.directory.glob("results/store/*/incoming/*/replay")))
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    assert len(fast.stored()) == 10
    fast.faults = {}
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    (ledger,) = run.passes.values()
    assert ledger["samples_extracted"] == 10
    assert quarantined(fast) == set(fast.all_keys())
    assert not leftovers(fast)
    assert fast.run("extract").nothing_done


def test_a_pass_that_is_killed_during_a_good_replay_loses_only_that(fast: Workflow) -> None:
    """What it stored is taken as found in the store: nothing is extracted again, and nothing says that it was
    replayed."""
    fast.faults = {"hold": [f"{by_length(fast)[-1]} again"]}
    supervisor = fast.start_pass()
    wait_for(lambda: list(fast.directory.glob("results/store/*/incoming/*/replay")))
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    fast.faults = {}
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert not run.passes
    assert "proof: replay" not in run.output
    assert len(fast.stored()) == 10
    assert not leftovers(fast)


@pytest.mark.parametrize("end", ["signal", "engine", "off", "refused"])
def test_a_replay_that_cannot_be_made_costs_no_sample_and_the_ledger_says_so(
    fast: Workflow, end: str
) -> None:
    longest = by_length(fast)[-1]
    if end == "off":
        fast.config["validation"] = {"replay_samples": 0}
    if end == "refused":
        fast.faults = {"write": {f"{longest} again": 28}}
    fast.faults |= {"signal": {"hold": [f"{longest} again"]}, "engine": {"kill": [f"{longest} again"]}}.get(
        end, {}
    )
    supervisor = fast.start_pass()
    if end == "signal":
        engine_log = fast.directory / "engine.log"
        wait_for(lambda: engine_log.exists() and f"computing {longest} again" in engine_log.read_text())
        supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(PATIENCE_S) == 0
    told = {
        "signal": "the pass was stopped, or its walltime was nearly over",
        "engine": "was killed by SIGKILL",
        "off": "validation.replay_samples is 0",
        "refused": "No space left on device",
    }
    import json

    ledger = json.loads(fast.ledger("001").read_text())
    assert told[end] in ledger["replay"]["unfinished"]
    last_words = {6, 7}  # an engine that dies may take the result before with it
    assert len(ledger["replay"]["samples"]) in {"off": {0}, "engine": last_words}.get(end, {7})
    assert not ledger["replay"]["failed"]
    assert {outcome["state"] for outcome in ledger["batches"].values()} == {"complete"}
    assert len(fast.stored()) == 10
    assert not leftovers(fast)
    assert not fast.failure_records()
