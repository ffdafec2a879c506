from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from integration.fixtures import finished, finished_template, tiny_llama, tokenized_template
from integration.workflow import Workflow
from slurm.cluster import Cluster, running_cluster
from slurm.workflow import HALF, SlurmWorkflow

__all__ = ["finished", "finished_template", "tiny_llama", "tokenized_template"]


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def held(tmp_path: Path, cluster: Cluster, tokenized_template: Workflow) -> Iterator[SlurmWorkflow]:
    """A tokenized run that has yet to be extracted; a pass stands still after three samples, the first batch
    and one of the second."""
    copied = tokenized_template.copy(tmp_path / "run")
    workflow = SlurmWorkflow(copied.directory, copied.config)
    workflow.cluster = cluster
    workflow.hold_all_but(HALF)
    yield workflow
    workflow.set_faults({})
    cluster.heal()
