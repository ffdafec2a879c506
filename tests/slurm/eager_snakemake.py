"""Snakemake as it is, but for one thing: it asks SLURM every second. The plugin waits 10 s longer after each
look in vain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

look = Executor.check_active_jobs


async def look_every_second(executor: Executor, jobs: list[Any]) -> AsyncIterator[Any]:
    async for job in look(executor, jobs):
        yield job
    executor.next_seconds_between_status_checks = 1


if __name__ == "__main__":
    Executor.check_active_jobs = look_every_second
    main()
