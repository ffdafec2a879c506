"""Which process wrote a record, and whether it still runs. Standard library only."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from eagle3_data.records import Record


@dataclass(frozen=True, kw_only=True)
class Process(Record):
    """What distinguishes a process from all others, on this machine or another."""

    host: str
    pid: int
    pid_started: str | None
    kernel: str
    slurm_job_id: str | None = None

    @property
    def is_alive(self) -> bool | None:
        """Whether it still runs; None where it cannot be known here: it ran on another machine, before this
        one was started, or in another container."""
        return _start_time(self.pid) == self.pid_started if self.kernel == _kernel() else None

    @property
    def is_gone(self) -> bool:
        """Whether it ran on this machine and no longer does."""
        return self.is_alive is False


def this_process() -> Process:
    return Process(
        host=socket.gethostname(),
        pid=os.getpid(),
        pid_started=_start_time(os.getpid()),
        kernel=_kernel(),
        slurm_job_id=os.environ.get("SLURM_JOB_ID"),
    )


def _kernel() -> str:
    """This boot of this machine, and this process namespace: where a process number means something."""
    return (
        f"{Path('/proc/sys/kernel/random/boot_id').read_text(encoding='ascii').strip()}"
        f" {os.readlink('/proc/self/ns/pid')}"
    )


def _start_time(pid: int) -> str | None:
    """Field 22 of /proc/<pid>/stat, None for a process that is dead or a zombie."""
    try:
        fields = (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]
