"""Which process wrote a record, and whether it still runs. Standard library only."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any


def this_process() -> dict[str, Any]:
    """What distinguishes this process from all others, on this machine or another."""
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "pid_started": _start_time(os.getpid()),
        "kernel": _kernel(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
    }


def is_alive(process: dict[str, Any]) -> bool | None:
    """Whether the process of a record still runs; None where it cannot be known here: it ran on another
    machine, before this one was started, or in another container."""
    return (
        _start_time(process["pid"]) == process["pid_started"] if process.get("kernel") == _kernel() else None
    )


def is_gone(process: dict[str, Any]) -> bool:
    """Whether the process of a record ran on this machine and no longer does."""
    return is_alive(process) is False


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
