"""A lock with a heartbeat: one pass at a time for each stripe of a run. Standard library only.

A pass that extracts keeps `extraction/running/<stripe>-of-<jobs>.json` and renews it every few seconds: who
it is (host, process, SLURM job) and how far it has come. A second pass that meets a live lease waits, and
then finds the work done: so a Snakemake that was killed and started again never loads the model beside the
job that still runs. A lease is dead when its process is gone from this machine, or when it has not changed
for a minute by the watcher's own clock. A pass that only stood still for so long (SIGSTOP, a file system that
hung) and continues finds another's lease at its next beat, and stops.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eagle3_data.log import say
from eagle3_data.passes.ledger import PassFacts
from eagle3_data.records import remove
from eagle3_data.store import ABANDONED_S
from eagle3_data.system.processes import Process, this_process

BEAT_S = 5.0
SILENT_S = 60.0
POLL_S = 1.0
UNREADABLE_S = 4 * BEAT_S
"""How long a damaged lease is given before it is removed: its holder would have written it again."""


@dataclass(frozen=True, kw_only=True)
class PassProgress(PassFacts):
    """How far a running pass has come. Times are seconds since the epoch."""

    stripe: int
    phase: str
    started_at: float
    updated_at: float
    extracting_since: float | None = None
    to_extract: int = 0
    extracted: int = 0
    failed: int = 0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class LeaseState(PassProgress, Process):
    """The file of a lease: whose it is (`token`), how often it was renewed, and how far that pass is."""

    token: str
    beat: int


def is_live(path: Path, state: LeaseState) -> bool:
    """Whether a lease is a running pass's, as far as one look can show: it was renewed in the last minute,
    and its process is not gone."""
    try:
        return not state.is_gone and time.time() - path.stat().st_mtime < SILENT_S
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
        describe: Callable[[], PassProgress],
        on_loss: Callable[[], None],
    ) -> None:
        self._directory, self._name, self._jobs = directory, f"{stripe}-of-{jobs}.json", jobs
        self._describe, self._on_loss = describe, on_loss
        self._renewed: Path | None = None
        self._token = secrets.token_hex(8)
        self._beats = 0
        self._absent = 0
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        return self._directory / self._name

    def acquire(self, stop: threading.Event) -> bool:
        """Wait for the lease; False if `stop` was set before it came."""
        seen: dict[str, tuple[object, float]] = {}
        announced = False
        while not stop.is_set():
            holder = self._living_rival(seen)
            if holder is None and self._take():
                self._clean()
                self._thread = threading.Thread(target=self._beat, daemon=True)
                self._thread.start()
                return True
            if holder is not None and not announced:
                job = f", SLURM job {holder.slurm_job_id}" if holder.slurm_job_id else ""
                say(
                    f"another pass is extracting this run (host {holder.host}, process {holder.pid}{job});"
                    " waiting for it, without loading anything"
                )
                announced = True
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

    def _living_rival(self, seen: dict[str, tuple[object, float]]) -> LeaseState | None:
        """A living pass over the same samples: the same stripe, or any stripe of another division into jobs.
        A lease that cannot be read is damaged, since each is written whole: it is removed unless its holder
        puts it right at its next beats."""
        for path in sorted(self._directory.glob("*-of-*.json")):
            if path.name.endswith(f"-of-{self._jobs}.json") and path.name != self._name:
                continue
            holder = LeaseState.find(path)
            state = (holder.token, holder.beat) if holder else None
            if seen.setdefault(path.name, (state, time.monotonic()))[0] != state:
                seen[path.name] = (state, time.monotonic())
            silent_s = time.monotonic() - seen[path.name][1]
            if holder is None and silent_s > UNREADABLE_S:
                self._bury(path, None)
            elif holder and (holder.is_gone or silent_s > SILENT_S):
                self._bury(path, holder.token)
            elif holder:
                return holder
        return None

    def _bury(self, path: Path, token: str | None) -> None:
        """Remove a dead lease, and only that one: another waiting pass may have put its own there in the
        meantime."""
        grave = path.with_name(f".{path.name}.{self._token}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, grave)
            buried = LeaseState.find(grave)
            if buried and buried.token != token:
                with contextlib.suppress(FileExistsError):
                    os.link(grave, path)
            remove(grave)

    def _take(self) -> bool:
        mine = self._directory / f".{self._name}.{self._token}.new"
        self._state().write(mine)
        try:
            os.link(mine, self.path)
        except FileExistsError:
            return False
        finally:
            mine.unlink()
        return True

    def _state(self) -> LeaseState:
        self._beats += 1
        return LeaseState(
            **vars(this_process()), **vars(self._describe()), token=self._token, beat=self._beats
        )

    def _is_ours(self) -> bool:
        state = LeaseState.find(self.path)
        return state is not None and state.token == self._token

    def _clean(self) -> None:
        """Remove unfinished files of processes that were killed; our lease, just written, tells the file
        system's time."""
        with contextlib.suppress(OSError):
            now = self.path.stat().st_mtime
            for path in self._directory.glob(".*"):
                if now - path.stat().st_mtime > ABANDONED_S:
                    path.unlink(missing_ok=True)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_S):
            if not self.renew():
                self._on_loss()
                return

    def renew(self) -> bool:
        """One beat; False once the lease is another's, or was away at two beats in a row."""
        if self._renewed is not None:
            with contextlib.suppress(OSError):
                os.utime(self._renewed)
        with contextlib.suppress(OSError):  # a full disk: it beats again when there is room
            state = LeaseState.find(self.path)
            is_damaged = state is None and self.path.exists()  # nobody else writes there while we hold it
            if is_damaged or (state is not None and state.token == self._token):
                self._state().write(self.path)
                self._absent = 0
                return True
            self._absent += state is None
            # absent at one beat only: `_bury` puts back what it took in error
            return state is None and self._absent < 2
        return True
