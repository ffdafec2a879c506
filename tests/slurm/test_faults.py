"""What a cluster does to a pass: it cancels, preempts and forgets jobs, loses nodes, restarts. Real daemons, a fake engine.

In each case nothing that was finished is lost or extracted again, and the run goes on by itself or says what to do.
"""

from __future__ import annotations

import pytest

from slurm.cluster import why_impossible
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
        slow.cluster.ask("scontrol", "update", f"JobId={job}", "StartTime=now")  # SLURM's own pause is two minutes
        assert run.end() == 0, run.output
        assert run.jobs() == [job]
    assert len(finished) < 10
    assert finished.items() <= slow.written_at().items()
    assert slow.targets() == sorted(slow.batches())
