from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.fixtures import finished, finished_template, tiny_llama, tokenized_template
from integration.workflow import Workflow
from slurm.cluster import Cluster, running_cluster
from slurm.workflow import SAMPLE_S, SlurmWorkflow

__all__ = ["finished", "finished_template", "tiny_llama", "tokenized_template"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def slow(tmp_path: Path, cluster: Cluster, tokenized_template: Workflow) -> Iterator[SlurmWorkflow]:
    """A tokenized run that has yet to be extracted, with samples that take long enough to be interrupted."""
    copied = tokenized_template.copy(tmp_path / "run")
    workflow = SlurmWorkflow(copied.directory, copied.config)
    workflow.cluster = cluster
    workflow.faults = {"sleep_s": SAMPLE_S}
    yield workflow
    cluster.heal()
