"""Shows the progress of passes where Snakemake was called, one line per change. The passes write to their
own logs, perhaps on other machines; how far they are stands in their leases."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.status import LeaseFile, describe_running

LOOK_EVERY_S = 5.0
LINE_EVERY_S = 30.0
"""A pass that only gets further says so this often; one that enters another phase says so at once."""


class PassWatcher:
    """Looks at the leases of a run until `stop`; prints with `say` (by default a line to stderr)."""

    def __init__(self, extraction: Path, say: Callable[[str], None] | None = None) -> None:
        self._paths = PassPaths(extraction)
        self._say = say or _to_stderr
        self._said: dict[tuple[str, str], tuple[str, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="passes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(LOOK_EVERY_S)

    def look(self, now: float) -> None:
        """Print what is new at `now`, in seconds of any clock."""
        for lease in LeaseFile.find_all(self._paths):
            record = lease.state
            name, phase = (record.number, str(record.stripe)), record.phase
            said, at = self._said.get(name, ("", now))
            if not lease.live or (said == phase and now - at < LINE_EVERY_S):
                continue
            self._said[name] = (phase, now)
            self._say(describe_running(record))

    def _watch(self) -> None:
        elapsed = 0.0
        while not self._over.wait(LOOK_EVERY_S):
            elapsed += LOOK_EVERY_S
            # Progress is a comfort: nothing that is wrong with a lease may disturb the run.
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
                self.look(elapsed)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
