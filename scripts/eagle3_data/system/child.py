"""Child processes that never outlive their parent, however it ends. Standard library only.

A child gets the reading end of a pipe, its lifeline, whose other end only the parent holds. When the parent
dies, even by kill -9, the pipe closes, and a thread of the child ends the child's whole process group: no
engine stays on the devices.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from eagle3_data import PACKAGE_ROOT
from eagle3_data.log import warn

LIFELINE = "EAGLE3_DATA_LIFELINE_FD"
PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>."""
DEATH_S = 20.0
"""How long a killed process may take to be gone: well under the 30 s that SLURM leaves after SIGTERM, so that
the ledger is still written."""


class Child:
    """`python -m module *arguments` in a process group of its own; stdout and stderr go to `log`,
    appended."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        log: Path,
        *,
        pass_fds: Sequence[int] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        theirs, ours = os.pipe()
        self._lifeline = open(ours, "wb", buffering=0)  # noqa: SIM115  open as long as the child may live
        python_path = os.pathsep.join(filter(None, (PACKAGE_ROOT, os.environ.get("PYTHONPATH", ""))))
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(log, "ab") as output:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(theirs, *pass_fds),
                    start_new_session=True,
                    env={
                        **os.environ,
                        **(environment or {}),
                        "PYTHONPATH": python_path,
                        LIFELINE: str(theirs),
                    },
                )
        finally:
            os.close(theirs)

    def end(self) -> str:
        """How the process ended, in words. It must be dead or dying."""
        try:
            code = self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            return f"did not end within {DEATH_S:g} s (process {self.process.pid})"
        if code < 0:
            name = signal.Signals(-code).name
            return f"was killed by {name}" + (
                " (often the kernel's out-of-memory killer)" if name == "SIGKILL" else ""
            )
        return f"ended with exit code {code}"

    def kill(self) -> None:
        """End the whole process group at once. A process that even SIGKILL does not end is left behind, and
        told."""
        if self._lifeline.closed:  # it was ended before, and its number may be another's by now
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(DEATH_S)
        except subprocess.TimeoutExpired:
            warn(
                f"process {self.process.pid} is still there {DEATH_S:g} s after SIGKILL, and may keep its"
                " devices: it hangs in the kernel (driver, file system)"
            )
        self._lifeline.close()


def watch_lifeline() -> None:
    """To be called first in a child: ends its process group when the parent is gone. Does nothing in a
    process started by hand."""
    fd = int(os.environ.pop(LIFELINE, "-1"))
    if fd < 0:
        return
    os.set_inheritable(fd, False)

    def wait_for_parent() -> None:
        os.read(fd, 1)  # returns only when the parent's end is closed
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait_for_parent, daemon=True).start()


def die_with_parent(parent: int) -> None:
    """To be called in a worker process of `parent`: the kernel kills it as soon as that is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before
        os._exit(1)
