"""What profiles/slurm asks of SLURM for each rule, as Snakemake itself resolves it. A dry run: no daemon is needed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.workflow import Run, Workflow
from slurm.workflow import SlurmWorkflow

pytestmark = pytest.mark.slow


@pytest.fixture
def planned(tmp_path: Path, tokenized_template: Workflow) -> SlurmWorkflow:
    copied = tokenized_template.copy(tmp_path / "run")
    return SlurmWorkflow(copied.directory, copied.config)


def resources_of(run: Run, rule: str) -> dict[str, str]:
    """The effective resources of the first job of `rule` in a dry run."""
    assert run.returncode == 0, run.output
    found = re.search(rf"rule {rule}:\n(?:    .*\n)*?    resources: (.*)", run.output)
    assert found, run.output
    return dict(item.split("=", 1) for item in found[1].split(", "))


def test_the_pass_is_one_job_of_eight_devices_on_one_node_for_a_day(planned: SlurmWorkflow) -> None:
    dry = planned.run("--dry-run", "extract")
    asked = resources_of(dry, "extract_pass")
    expected = {"gpu": "8", "nodes": "1", "runtime": "1440", "mem_mb": "256000", "slurm_partition": "main"}
    assert {name: asked[name] for name in expected} == expected
    assert dry.output.count("rule extract_pass:") == 1


def test_small_jobs_ask_for_no_device(planned: SlurmWorkflow) -> None:
    asked = resources_of(planned.run("--dry-run", "validate"), "validate_batch")
    assert "gpu" not in asked
    assert (asked["runtime"], asked["mem_mb"], asked["slurm_partition"]) == ("30", "16000", "main")


def test_resources_on_the_command_line_replace_those_of_the_profile(planned: SlurmWorkflow) -> None:
    planned.resources = ("gpu=4",)
    asked = resources_of(planned.run("--dry-run", "extract"), "extract_pass")
    assert (asked["gpu"], asked["runtime"], asked["mem_mb"]) == ("4", "60", "8000")
