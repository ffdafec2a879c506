"""What a cluster does to a pass: it cancels, preempts and forgets jobs, loses nodes, restarts. Real daemons,
a fake engine.

In each case nothing that was finished is lost or extracted again, and the run goes on by itself or says what
to do.
"""

from __future__ import annotations

import json

import pytest

from eagle3_data.passes.forecast import SHORTEST_MIN
from integration.workflow import FAKE_GENERATOR, Workflow
from slurm.cluster import Cluster, why_impossible
from slurm.workflow import HALF, SlurmWorkflow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible())),
]


def assert_it_ends_with(cause: str, output: str) -> None:
    """The last lines of a failed run: the cause, and the command that was called, since that goes on."""
    told, _, command = output.rpartition("\nresults/")[2].partition("rerun only what is missing:\n")
    assert cause in told
    assert "snakemake" in command
    assert "profiles/slurm" in command
    assert " extract\n" in command


def assert_the_rest_is_extracted(workflow: SlurmWorkflow, finished: dict[str, int]) -> None:
    """The same command extracts what is not in `finished`, and only that."""
    workflow.faults = {}
    resumed = workflow.run("extract")
    assert resumed.returncode == 0, resumed.output
    assert list(resumed.passes) == ["002/0"]
    assert resumed.passes["002/0"]["samples_extracted"] == 10 - len(finished)
    assert finished.items() <= workflow.written_at().items()
    assert workflow.targets() == sorted(workflow.batches())


def test_a_cancelled_pass_says_so_and_the_same_command_extracts_the_rest(held: SlurmWorkflow) -> None:
    with held.running("extract") as run:
        job = run.wait_for_half()
        held.cluster.ask("scancel", job)
        assert run.end() != 0
        assert_it_ends_with("the pass was stopped by SIGTERM", run.output)
        assert f"SLURM-job '{job}' failed, SLURM status is: 'CANCELLED'" in run.output
    finished = held.written_at()
    assert len(finished) == HALF
    assert_the_rest_is_extracted(held, finished)
    assert [record["JobState"] for record in held.jobs_of_passes()] == ["CANCELLED", "COMPLETED"]


def test_a_preempted_pass_is_queued_again_and_goes_on_by_itself(held: SlurmWorkflow) -> None:
    with held.running("extract") as run:
        job = run.wait_for_half()
        held.cluster.ask("scontrol", "requeue", job)  # what PreemptMode=REQUEUE does to it
        finished = held.written_at()
        held.set_faults({})
        run.wait_for(lambda: held.cluster.state(job) == "PENDING")
        assert run.end() == 0, run.output
        assert run.jobs() == [job]
    assert len(finished) == HALF
    assert finished.items() <= held.written_at().items()
    assert held.targets() == sorted(held.batches())


def test_a_pass_whose_node_dies_is_queued_again_and_goes_on_by_itself(held: SlurmWorkflow) -> None:
    with held.running("extract") as run:
        job = run.wait_for_half()
        held.cluster.kill_node()
        finished = held.written_at()
        held.set_faults({})
        run.wait_for(lambda: held.cluster.state(job) == "PENDING")
        assert held.written_at() == finished
        held.cluster.start_node()
        assert run.end() == 0, run.output
        assert run.jobs() == [job]
    assert len(finished) == HALF
    assert finished.items() <= held.written_at().items()
    assert held.targets() == sorted(held.batches())
    assert [record["JobState"] for record in held.jobs_of_passes()] == ["NODE_FAIL", "COMPLETED"]


def test_a_pass_goes_on_while_the_controller_restarts(held: SlurmWorkflow) -> None:
    with held.running("extract") as run:
        job = run.wait_for_half()
        held.cluster.stop_controller()
        held.set_faults({})
        run.wait_for(held.ledgers)
        held.cluster.start_controller()
        assert run.end() == 0, run.output
        assert run.jobs() == [job]
    assert held.ledgers()["001/0"]["samples_extracted"] == 10
    assert held.targets() == sorted(held.batches())


@pytest.mark.nightly  # test_supervisor has the end of a walltime without a cluster
def test_a_pass_stops_before_its_walltime_and_the_same_command_extracts_the_rest(held: SlurmWorkflow) -> None:
    held.config["tokenization"]["max_length"] = 64
    held.config["extraction"].update(
        in_flight_tokens=64, stop_before_end_s=30
    )  # one sample at a time; the shortest walltime is a minute
    assert Workflow(held.directory, held.config).run("results/test/compatibility/report.json").returncode == 0
    held.hold_all_but(HALF)
    held.resources = ("gpu=8", "nodes=1", "runtime=1")
    with held.running("extract") as run:
        run.wait_for(lambda: held.has_logged("stopping: the job's walltime ends in"))
        held.set_faults({})
        assert run.end() != 0
        assert_it_ends_with("walltime ends in", run.output)
    finished = held.written_at()
    assert len(finished) == HALF + 1, "the engine finishes the sample it has"
    held.resources = ()
    assert_the_rest_is_extracted(held, finished)
    assert [record["TimeLimit"] for record in held.jobs_of_passes()] == ["1", str(SHORTEST_MIN + 1)]


def test_a_generation_that_its_walltime_kills_says_so_and_the_same_command_does_the_rest(
    held: SlurmWorkflow,
) -> None:
    """What kills a pass is common to both kinds; here it is that of the target's answers."""
    held.config["generation"] = {"responses": "target", "max_tokens": 60, "engine": FAKE_GENERATOR}
    planned = Workflow(held.directory, held.config).run("results/test/generation/report.json")
    assert planned.returncode == 0, planned.output
    held.set_faults({"hold": list(held.questions().values())[HALF:]})

    def answered() -> int:
        journals = held.directory.glob("results/generations/*/incoming/*/answers.jsonl")
        return sum(len(journal.read_bytes().splitlines()) for journal in journals)

    with held.running("extract") as run:
        run.wait_for(lambda: answered() >= HALF)
        job = run.jobs()[-1]
        held.cluster.ask(
            "scontrol", "update", f"JobId={job}", "EndTime=now"
        )  # SLURM looks for ended walltimes every half minute
        assert run.end() != 0
        assert_it_ends_with("the pass was stopped by SIGTERM", run.output)
        assert f"SLURM-job '{job}' failed, SLURM status is: 'TIMEOUT'" in run.output
    killed = json.loads(held.ledger("001", "generate").read_text())
    assert killed["samples_extracted"] == HALF
    assert killed["devices"] == "0,1,2,3,4,5,6,7"
    held.faults = {}
    resumed = held.run("extract")
    assert resumed.returncode == 0, resumed.output
    assert json.loads(held.ledger("002", "generate").read_text())["samples_extracted"] == 10 - HALF
    jobs = held.jobs_of_passes("generate_pass")
    assert [record["JobState"] for record in jobs] == ["TIMEOUT", "COMPLETED"]
    assert jobs[1]["TimeLimit"] == str(SHORTEST_MIN + 2), "the forecast"
    assert resumed.passes["001/0"]["samples_extracted"] == 10
    assert held.targets() == sorted(held.batches())


def test_two_jobs_of_four_devices_extract_a_pass_at_the_same_time(held: SlurmWorkflow) -> None:
    held.config["extraction"]["jobs"] = 2
    held.resources = ("gpu=4", "nodes=1")
    held.set_faults({"hold": held.all_keys()})
    with held.running("extract") as run:
        run.wait_for(lambda: len(list(held.results.glob("extraction/running/*-of-2.json"))) == 2)
        held.set_faults({})
        assert run.end() == 0, run.output
    passes = held.ledgers()
    assert sorted(passes) == ["001/0", "001/1"]
    first, second = passes["001/0"], passes["001/1"]
    assert sorted(f"{first['devices']},{second['devices']}".split(",")) == [
        str(device) for device in range(8)
    ]
    assert len(first["devices"].split(",")) == 4
    assert max(first["started_at"], second["started_at"]) < min(
        ledger["started_at"] + ledger["elapsed_s"] for ledger in (first, second)
    )
    assert first["slurm_job_id"] != second["slurm_job_id"]


@pytest.mark.nightly  # test_passes does so without a cluster
def test_other_batch_sizes_on_the_same_store_submit_no_pass(cluster: Cluster, finished: Workflow) -> None:
    workflow = SlurmWorkflow(finished.directory, finished.config)
    workflow.cluster = cluster
    workflow.config["tokenization"]["batch_tokens"] = 200
    with workflow.running("extract") as run:
        assert run.end() == 0, run.output
        assert len(run.jobs()) == 1, "the tokenization"
        assert "find_stored_batches" in run.output
    assert workflow.jobs_of_passes() == []
    assert sorted(workflow.ledgers()) == ["001/0"]
    assert set(workflow.batches()) <= set(workflow.targets())


def test_a_canary_that_fails_costs_one_submission_and_no_load(held: SlurmWorkflow) -> None:
    held.config["compatibility"] = {"canary": "inline"}
    held.faults = {"start": "no such device"}
    run = held.run("extract")
    assert run.returncode != 0
    assert len(held.jobs_of_passes()) == 1
    assert run.passes["001/0"]["model_loads"] == 0
    assert run.passes["001/0"]["failure"]["class"] == "CompatibilityError"
    assert_it_ends_with("no such device", run.output)


def test_snakemake_killed_beside_its_job_is_started_again_and_nothing_is_extracted_twice(
    held: SlurmWorkflow,
) -> None:
    with held.running("extract") as killed:
        orphan = killed.wait_for_half()
        killed.process.kill()
    assert held.run("--unlock").returncode == 0
    with held.running("extract") as run:
        run.wait_for(run.jobs)
        held.set_faults({})
        assert run.end() == 0, run.output
        assert orphan not in run.jobs()
        run.wait_for(lambda: held.cluster.state(orphan) == "COMPLETED")
    assert sum(ledger["samples_extracted"] for ledger in held.ledgers().values()) == 10
    assert held.targets() == sorted(held.batches())
