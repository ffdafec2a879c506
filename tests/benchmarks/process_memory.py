"""The memory of a process and its children."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import psutil

SAMPLE_EVERY_S = 0.5


def tree_bytes(pid: int) -> int:
    """Proportional set size of a process and its children. The kernel's own sum (smaps_rollup) disturbs them
    least."""
    total = 0
    try:
        for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
            rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text(encoding="ascii")
            total += next(
                int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:")
            )
    except (psutil.Error, OSError, StopIteration):
        return total  # one of them has just ended
    return total


def watch_peak(child: subprocess.Popen[str]) -> int:
    """The largest `tree_bytes` of a child until it ends, sampled twice a second."""
    peak_bytes = 0
    while child.poll() is None:
        peak_bytes = max(peak_bytes, tree_bytes(child.pid))
        time.sleep(SAMPLE_EVERY_S)
    return peak_bytes
