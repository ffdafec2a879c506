"""What a cluster does to a pass: it cancels, preempts and forgets jobs, loses nodes, restarts. Real daemons, a fake engine.

In each case nothing that was finished is lost or extracted again, and the run goes on by itself or says what to do.
"""

from __future__ import annotations

import pytest

from eagle3_data.extraction.forecast import SHORTEST_MIN
from integration.workflow import Workflow
from slurm.cluster import Cluster, why_impossible
from slurm.workflow import SlurmWorkflow

pytestmark = [pytest.mark.slow, pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible()))]


def assert_the_rest_is_extracted(workflow: SlurmWorkflow, finished: dict[str, int]) -> None:
    """The same command extracts what is not in `finished`, and only that."""
    workflow.faults = {}
    resumed = workflow.run("extract")
    assert resumed.returncode == 0, resumed.output
    assert list(resumed.passes) == ["002/0"]
    assert resumed.passes["002/0"]["samples_extracted"] == 10 - len(finished)
    assert finished.items() <= workflow.written_at().items()
    assert workflow.targets() == sorted(workflow.batches())


def test_a_cancelled_pass_says_so_and_the_same_command_extracts_the_rest(slow: SlurmWorkflow) -> None:
    with slow.running("extract") as run:
        job = run.wait_for_samples(3)
        slow.cluster.ask("scancel", job)
        assert run.end() != 0
        assert "the pass was stopped by SIGTERM" in run.last_lines
        assert "snakemake" in run.last_lines.rpartition("retries exactly what is missing")[2]
        assert f"SLURM-job '{job}' failed, SLURM status is: 'CANCELLED'" in run.output
    finished = slow.written_at()
    assert 3 <= len(finished) < 10
    assert_the_rest_is_extracted(slow, finished)
    assert [record["JobState"] for record in slow.jobs_of_passes()] == ["CANCELLED", "COMPLETED"]


def test_a_preempted_pass_is_queued_again_and_goes_on_by_itself(slow: SlurmWorkflow) -> None:
    with slow.running("extract") as run:
        job = run.wait_for_samples(3)
        slow.cluster.ask("scontrol", "requeue", job)  # what PreemptMode=REQUEUE does to it
        finished = slow.written_at()
        run.wait_for(lambda: slow.cluster.state(job) == "PENDING")
        assert run.end() == 0, run.output
        assert run.jobs() == [job]
    assert len(finished) < 10
    assert finished.items() <= slow.written_at().items()
    assert slow.targets() == sorted(slow.batches())


def test_a_pass_whose_node_dies_is_queued_again_and_goes_on_by_itself(slow: SlurmWorkflow) -> None:
    with slow.running("extract") as run:
        job = run.wait_for_samples(3)
        slow.cluster.kill_node()
        finished = slow.written_at()
        run.wait_for(lambda: slow.cluster.state(job) == "PENDING")
        assert slow.written_at() == finished
        slow.cluster.start_node()
        assert run.end() == 0, run.output
        assert run.jobs() == [job]
    assert len(finished) < 10
    assert finished.items() <= slow.written_at().items()
    assert slow.targets() == sorted(slow.batches())
    assert [record["JobState"] for record in slow.jobs_of_passes()] == ["NODE_FAIL", "COMPLETED"]


def test_a_pass_goes_on_while_the_controller_restarts(slow: SlurmWorkflow) -> None:
    with slow.running("extract") as run:
        job = run.wait_for_samples(2)
        slow.cluster.stop_controller()
        run.wait_for(slow.ledgers)
        slow.cluster.start_controller()
        assert run.end() == 0, run.output
        assert run.jobs() == [job]
    assert slow.ledgers()["001/0"]["samples_extracted"] == 10
    assert slow.targets() == sorted(slow.batches())


def test_a_pass_stops_before_its_walltime_and_the_same_command_extracts_the_rest(slow: SlurmWorkflow) -> None:
    slow.config["tokenization"]["max_length"] = 64
    slow.config["extraction"].update(in_flight_tokens=128, stop_before_end_s=50)  # the shortest walltime is a minute
    assert Workflow(slow.directory, slow.config).run("results/test/compatibility/report.json").returncode == 0
    slow.resources = ("gpu=8", "nodes=1", "runtime=1")
    slow.faults = {"sleep_s": 2}
    stopped = slow.run("extract")
    assert stopped.returncode != 0
    assert "walltime ends in" in stopped.output.rpartition("\nresults/")[2]
    finished = slow.written_at()
    assert 1 <= len(finished) < 10
    slow.resources = ()
    assert_the_rest_is_extracted(slow, finished)
    assert [record["TimeLimit"] for record in slow.jobs_of_passes()] == ["1", str(SHORTEST_MIN + 1)]


def test_a_pass_that_its_walltime_kills_says_so_and_the_same_command_extracts_the_rest(slow: SlurmWorkflow) -> None:
    slow.faults = {"sleep_s": 5}  # SLURM looks for ended walltimes every half minute
    with slow.running("extract") as run:
        job = run.wait_for_samples(2)
        slow.cluster.ask("scontrol", "update", f"JobId={job}", "EndTime=now")
        assert run.end() != 0
        assert "the pass was stopped by SIGTERM" in run.last_lines
        assert f"SLURM-job '{job}' failed, SLURM status is: 'TIMEOUT'" in run.output
    finished = slow.written_at()
    assert 2 <= len(finished) < 10
    assert_the_rest_is_extracted(slow, finished)


def test_two_jobs_of_four_devices_extract_a_pass_at_the_same_time(slow: SlurmWorkflow) -> None:
    slow.config["extraction"]["jobs"] = 2
    slow.resources = ("gpu=4", "nodes=1")
    run = slow.run("extract")
    assert run.returncode == 0, run.output
    assert sorted(run.passes) == ["001/0", "001/1"]
    first, second = (run.passes[name] for name in sorted(run.passes))
    assert sorted(f"{first['devices']},{second['devices']}".split(",")) == [str(device) for device in range(8)]
    assert len(first["devices"].split(",")) == 4
    assert max(first["started_at"], second["started_at"]) < min(ledger["started_at"] + ledger["elapsed_s"] for ledger in (first, second))
    assert first["slurm_job_id"] != second["slurm_job_id"]


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


def test_a_canary_that_fails_costs_one_submission_and_no_load(slow: SlurmWorkflow) -> None:
    slow.config["compatibility"] = {"canary": "inline"}
    slow.faults = {"start": "no such device"}
    run = slow.run("extract")
    assert run.returncode != 0
    assert len(slow.jobs_of_passes()) == 1
    assert run.passes["001/0"]["model_loads"] == 0
    assert run.passes["001/0"]["failure"]["class"] == "CompatibilityError"
    assert "no such device" in run.output.rpartition("\nresults/")[2]


def test_snakemake_killed_beside_its_job_is_started_again_and_nothing_is_extracted_twice(slow: SlurmWorkflow) -> None:
    slow.faults = {"sleep_s": 2}
    with slow.running("extract") as killed:
        orphan = killed.wait_for_samples(2)
        killed.process.kill()
    assert slow.run("--unlock").returncode == 0
    with slow.running("extract") as run:
        assert run.end() == 0, run.output
        assert orphan not in run.jobs()
    assert slow.cluster.state(orphan) == "COMPLETED"
    assert sum(ledger["samples_extracted"] for ledger in slow.ledgers().values()) == 10
    assert slow.targets() == sorted(slow.batches())
