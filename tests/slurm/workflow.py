"""Runs the workflow through profiles/slurm, in the foreground or beside the test, and reads SLURM's records
of its jobs."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from integration.workflow import PATIENCE_S, ROOT, Workflow
from slurm.cluster import Cluster

EAGER_SNAKEMAKE = ROOT / "tests/slurm/eager_snakemake.py"
HALF = 3
"""Samples after which a pass is held, of ten: the first batch and one of the second."""


class SlurmWorkflow(Workflow):
    cluster: Cluster
    eager = True
    """Whether SLURM is asked every second instead of as the plugin does."""
    resources: tuple[str, ...] = ()
    """What the command line sets for extract_pass, added to what the profile does: Snakemake takes the one or
    the other."""

    def arguments(self, *arguments: str) -> list[str]:
        local = super().arguments()
        profile = local.index("--workflow-profile")
        local[profile + 1] = str(self.root / "profiles/slurm")
        del local[local.index("--cores") : local.index("--cores") + 2]
        if self.eager:
            local[1:3] = [str(EAGER_SNAKEMAKE)]
        if self.resources:
            local += ["--set-resources", *(f"extract_pass:{resource}" for resource in self.resources)]
        local += ["--slurm-init-seconds-before-status-checks", "1" if self.eager else "3"]
        options = [argument for argument in arguments if argument.startswith("-")]
        return [*local, *options, "--", *arguments[len(options) :]]

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Running]:
        """The command in the background; killed with the block's end if it still runs."""
        with open(self.directory / "output.log", "wb") as output:
            process = subprocess.Popen(
                self.arguments(*arguments),
                cwd=self.directory,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Running(self, process)
        finally:
            process.kill()
            process.wait()

    def ledgers(self) -> dict[str, Any]:
        from eagle3_data.records import read_json

        return {name: read_json(path) for name, path in sorted(self._ledgers().items())}

    def jobs_of_passes(self, rule: str = "extract_pass") -> list[dict[str, str]]:
        """SLURM's own records of the jobs it ran for a rule in this directory, oldest first."""
        logs = self.directory.glob(f".snakemake/slurm_logs/rule_{rule}/*/*.log")
        jobs = {path.stem for path in logs}
        return [record for record in self.cluster.finished_jobs() if record["JobId"] in jobs]


class Running:
    """A command that runs beside the test."""

    def __init__(self, workflow: SlurmWorkflow, process: subprocess.Popen[bytes]) -> None:
        self.workflow, self.process = workflow, process

    @property
    def output(self) -> str:
        return (self.workflow.directory / "output.log").read_text()

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """What `condition` returns once it is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            assert time.monotonic() < deadline, self.output
            time.sleep(0.1)
        return value

    def wait_for_half(self) -> str:
        """Wait until the pass is held; returns its SLURM job."""
        self.wait_for(lambda: len(self.workflow.stored()) >= HALF)
        return self.jobs()[-1]

    def jobs(self) -> list[str]:
        """SLURM's ids of what this command submitted."""
        return re.findall(r"submitted with SLURM jobid (\d+)", self.output)

    def end(self) -> int:
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.output) from None
