"""One pass at a time for each stripe of a run. Standard library only.

A pass that extracts keeps `extraction/running/<stripe>-of-<jobs>.json` and renews it every few seconds: who
it is (host, process, SLURM job) and how far it has come. A second pass that meets a live lease waits, and
then finds the work done: so a Snakemake that was killed and started again never loads the model beside the
job that still runs. A lease is dead when its process is gone from this machine, or when it has not changed
for a minute by the watcher's own clock. A pass that only stood still for so long (SIGSTOP, a file system that
hung) and goes on finds another's lease at its next beat, and stops.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3_data.cli import say
from eagle3_data.processes import is_gone, this_process
from eagle3_data.records import find_json, write_json
from eagle3_data.store import ABANDONED_S

BEAT_S = 5.0
SILENT_S = 60.0
POLL_S = 1.0


def is_live(path: Path, record: dict[str, Any]) -> bool:
    """Whether a lease is a running pass's, as far as one look can tell: it was renewed in the last minute,
    and its process is not gone."""
    try:
        return not is_gone(record) and time.time() - path.stat().st_mtime < SILENT_S
    except FileNotFoundError:  # it has just ended
        return False


class Lease:
    """The right to extract one stripe. `describe` is asked at every beat for what others may know of the
    pass; `on_loss` is called, in another thread, once the lease turns out to be another's."""

    def __init__(
        self,
        directory: Path,
        stripe: int,
        jobs: int,
        describe: Callable[[], dict[str, Any]],
        on_loss: Callable[[], None],
    ) -> None:
        self._directory, self._name, self._jobs = directory, f"{stripe}-of-{jobs}.json", jobs
        self._describe, self._on_loss = describe, on_loss
        self._renewed: Path | None = None
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        return self._directory / self._name

    def acquire(self, stop: threading.Event) -> bool:
        """Wait for the lease; False if `stop` was set before it came."""
        seen: dict[str, tuple[Any, float]] = {}
        told = False
        while not stop.is_set():
            holder = self._living_rival(seen)
            if holder is None and self._take():
                self._clean()
                self._thread = threading.Thread(target=self._beat, daemon=True)
                self._thread.start()
                return True
            if holder is not None and not told:
                job = f", SLURM job {holder['slurm_job_id']}" if holder.get("slurm_job_id") else ""
                say(
                    f"another pass is extracting this run (host {holder['host']}, process"
                    f" {holder['pid']}{job}); waiting for it, nothing is loaded meanwhile"
                )
                told = True
            stop.wait(POLL_S)
        return False

    def renew_also(self, path: Path) -> None:
        """From now on, every beat sets the time of this file, too: the sign of life of a writer to the
        store."""
        self._renewed = path

    def release(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._is_ours():
            self.path.unlink(missing_ok=True)

    def _living_rival(self, seen: dict[str, tuple[Any, float]]) -> dict[str, Any] | None:
        """A living pass over the same samples: the same stripe, or any stripe of another division into
        jobs."""
        for path in sorted(self._directory.glob("*-of-*.json")):
            if path.name.endswith(f"-of-{self._jobs}.json") and path.name != self._name:
                continue
            record = find_json(path)
            if record is None:
                continue
            state = (record["token"], record["beat"])
            if seen.setdefault(path.name, (state, time.monotonic()))[0] != state:
                seen[path.name] = (state, time.monotonic())
            if is_gone(record) or time.monotonic() - seen[path.name][1] > SILENT_S:
                self._bury(path, record["token"])
            else:
                return record
        return None

    def _bury(self, path: Path, token: str) -> None:
        """Remove a dead lease, and only that one: another waiting pass may have put its own there in the
        meantime."""
        grave = path.with_name(f".{path.name}.{self._token}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, grave)
            buried = find_json(grave)
            if buried and buried["token"] != token:
                with contextlib.suppress(FileExistsError):
                    os.link(grave, path)
            grave.unlink()

    def _take(self) -> bool:
        mine = self._directory / f".{self._name}.{self._token}.new"
        write_json(mine, self._record())
        try:
            os.link(mine, self.path)
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        return True

    def _record(self) -> dict[str, Any]:
        self._beats += 1
        return {**this_process(), "token": self._token, "beat": self._beats, **self._describe()}

    def _is_ours(self) -> bool:
        record = find_json(self.path)
        return record is not None and record["token"] == self._token

    def _clean(self) -> None:
        """Remove unfinished files of processes that were killed; our lease, just written, tells the file
        system's time."""
        with contextlib.suppress(OSError):
            now = self.path.stat().st_mtime
            for path in self._directory.glob(".*"):
                if now - path.stat().st_mtime > ABANDONED_S:
                    path.unlink(missing_ok=True)

    def _beat(self) -> None:
        absent = 0
        while not self._over.wait(BEAT_S):
            if self._renewed is not None:
                with contextlib.suppress(OSError):
                    os.utime(self._renewed)
            with contextlib.suppress(OSError):  # a full disk: it beats again when there is room
                record = find_json(self.path)
                if record is not None and record["token"] == self._token:
                    write_json(self.path, self._record())
                    absent = 0
                    continue
                absent += record is None and not self.path.exists()
                if (
                    record is not None or absent > 1
                ):  # absent at one beat only: `_bury` puts back what it took in error
                    self._on_loss()
                    return
