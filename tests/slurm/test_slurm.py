"""The demo on a real SLURM cluster through profiles/slurm: the pass is one job with 8 GPUs, a failed batch is
retried alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.fixtures import demo_config
from slurm.cluster import Cluster, why_impossible
from slurm.workflow import SlurmWorkflow

pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(why_impossible() is not None, reason=str(why_impossible())),
]


def test_the_demo_runs_as_one_eight_gpu_job_and_a_failed_batch_is_retried_alone(
    cluster: Cluster, tmp_path: Path, tiny_llama: Path
) -> None:
    workflow = SlurmWorkflow(tmp_path / "run", demo_config(tiny_llama, engine="faulty_vllm:FaultyVllmEngine"))
    workflow.cluster, workflow.eager = cluster, False
    assert workflow.run("results/demo/tokens/batches.json").returncode == 0
    workflow.faults = {"refuse": {workflow.keys("00001")[0]: "refused for the test"}}
    failed = workflow.run("extract")
    assert failed.returncode != 0
    ledger = failed.passes["001/0"]
    assert ledger["devices"] == "0,1,2,3,4,5,6,7"
    assert ledger["slurm_job_id"]
    assert ledger["model_loads"] == 1
    assert ledger["versions"]["vllm"]
    assert workflow.targets() == [batch for batch in sorted(workflow.batches()) if batch != "00001"]
    assert "refused for the test" in workflow.log("extract_batch/00001.log")
    assert "rerun only what is missing" in failed.output
    assert re.search(r"^pass 001 stripe 0 on \S+, SLURM job \d+: \w", failed.output, re.MULTILINE)
    workflow.faults = {}
    retried = workflow.run("extract")
    assert retried.returncode == 0, retried.output
    assert list(retried.passes) == ["002/0"]
    assert retried.passes["002/0"]["samples_extracted"] == 1
    assert retried.gates == ["00001"]
    assert workflow.targets() == sorted(workflow.batches())
    assert [job["NodeCnt"] for job in workflow.jobs_of_passes()] == ["1", "1"], "one submission for each pass"
    assert workflow.run("extract").nothing_done
