"""The supervisor's side of the engine's process. Standard library only."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from multiprocessing.connection import Connection, wait
from pathlib import Path

from eagle3_data.child import Child
from eagle3_data.engines.base import EngineSettings, Extracted, Fatal, Ready, Rejected, Request
from eagle3_data.errors import EngineError, describe_situation

Word = Ready | Extracted | Rejected | Fatal


class EngineProcess:
    """An engine in a child process (`eagle3_data.extraction.engine_child`), whose output goes to `log`."""

    def __init__(self, settings: EngineSettings, log: Path) -> None:
        self._log = log
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            environment = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}  # forked workers would keep the channel open
            self._child = Child("eagle3_data.extraction.engine_child", [str(fd)], log, pass_fds=[fd], environment=environment)
        self._channel = Connection(ours.detach())
        self._exited = open(os.pidfd_open(self._child.process.pid), "rb", buffering=0)  # noqa: SIM115  a handle to wait on
        self._channel.send(settings)

    def send(self, request: Request) -> None:
        """Hand over a request. A dead engine is noticed by the next `receive`, not here."""
        with contextlib.suppress(OSError):
            self._channel.send(request)

    def receive(self, timeout_s: float) -> Word | None:
        """The engine's next word; None if it says nothing for `timeout_s` seconds. A dead engine says Fatal."""
        ready = wait([self._channel, self._exited.fileno()], timeout_s)
        if self._channel in ready:
            with contextlib.suppress(EOFError, OSError):
                word: Word = self._channel.recv()
                return word
        elif not ready:
            return None
        return Fatal(describe_situation(EngineError, f"the engine's process {self._child.end()}; its output is in {self._log}"))

    def close(self, timeout_s: float = 60) -> None:
        """Let the engine finish by itself, then end whatever is left of its process group."""
        with contextlib.suppress(OSError):
            self._channel.send(None)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.process.wait(timeout_s)
        self.kill()

    def kill(self) -> None:
        """End the whole process group at once."""
        self._child.kill()
        self._channel.close()
        self._exited.close()
