"""Reasons for a pass to stop before everything is extracted: a signal, the end of the job's walltime, a disk
without room.

What is finished stays finished, the rest is left for the next pass. After a signal nothing is waited for,
since what follows it (SLURM's KillWait is 30 s) leaves no time. Otherwise the engine may finish what it has.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import FrameType

from eagle3_data.errors import Eagle3DataError, EngineError, StorageError
from eagle3_data.log import warn
from eagle3_data.records.failures import Failure, describe_situation

LOOK_EVERY_S = 2.0
SCHEDULER_S = 5.0
"""How much earlier than it says SLURM may end a job."""
SQUEUE_TIMEOUT_S = 20


class Stop:
    """Why the pass stops, if it does. `now` is set by a signal."""

    def __init__(self, store: Path, reserve_bytes: float, before_end_s: float) -> None:
        self._store, self._reserve_bytes, self._before_end_s = store, reserve_bytes, before_end_s
        self.now = threading.Event()
        self.failure: Failure | None = None
        self._end_at = job_end_time()
        self._looked_at = 0.0
        self._is_walltime = False
        """Whether the end of the walltime is why the pass stops."""

    def listen(self) -> None:
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        os.write(
            2, f"{name} received: finished samples are kept, the rest is left for the next pass\n".encode()
        )
        message = f"the pass was stopped by {name}"
        if self._end_at is not None and time.time() > self._end_at - SCHEDULER_S:
            message += (
                f": the job's walltime ended (extraction.stop_before_end_s = {self._before_end_s:g} was too"
                " short to stop by itself)"
            )
        self.failure = self.failure or describe_situation(EngineError, message)
        self.now.set()

    def is_near(self) -> bool:
        """Whether no more samples should be started."""
        if self.failure is None and time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._look()
        return self.failure is not None

    def spares_time(self) -> bool:
        """Whether a pass that has nothing left to extract may look at what it has: also in the first half of
        the time that is kept before the end of the walltime."""
        if self.now.is_set():
            return False
        if not self.is_near():
            return True
        return (
            self._is_walltime
            and self._end_at is not None
            and time.time() < self._end_at - self._before_end_s / 2
        )

    def no_room(self, message: str) -> None:
        self._because(StorageError, f"{message}; make room and run the same command again")

    def _look(self) -> None:
        free = shutil.disk_usage(self._store).free
        if free < self._reserve_bytes:
            message = (
                f"{free / 2**30:.2f} GiB are free where {self._store} is, and extraction.disk_reserve_gib"
                f" keeps {self._reserve_bytes / 2**30:g}"
            )
            self.no_room(message)
        elif self._end_at is not None and time.time() > self._end_at - self._before_end_s:
            self._is_walltime = True
            self._because(
                EngineError,
                f"the job's walltime ends in {max(0, self._end_at - time.time()):.0f} s; run the same"
                " command to continue",
            )

    def _because(self, kind: type[Eagle3DataError], message: str) -> None:
        if self.failure is None:
            self.failure = describe_situation(kind, message)
            warn(f"stopping: {message}")


def job_end_time() -> float | None:
    """When SLURM will end this job, in seconds since the epoch; None outside a job, or where SLURM does not
    tell."""
    if end := os.environ.get("SLURM_JOB_END_TIME"):
        return float(end)
    job = os.environ.get("SLURM_JOB_ID")
    if not job:
        return None
    try:
        asked = subprocess.run(
            ["squeue", "-h", "-j", job, "-o", "%L"],
            capture_output=True,
            text=True,
            timeout=SQUEUE_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    left = time_left_s(asked.stdout.strip())
    return None if left is None else time.time() + left


def time_left_s(text: str) -> float | None:
    """Seconds of squeue's `%L`: [days-][hours:]minutes:seconds; None for "UNLIMITED" and the like."""
    days, _, clock = text.rpartition("-")
    parts = clock.split(":")
    if not all(part.isdigit() for part in (days or "0", *parts)) or len(parts) > 3:
        return None
    hours, minutes, seconds = ([0, 0, 0] + [int(part) for part in parts])[-3:]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
