"""The supervisor's side of the engine's process."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import time
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path

from eagle3_data.engines.base import Alive, Done, Fatal, ModelSettings, Ready, Work
from eagle3_data.engines.log import reported_kernels, with_damaged_weights, with_root_cause
from eagle3_data.errors import EngineError
from eagle3_data.records.failures import Failure, describe_situation
from eagle3_data.system.child import Child

STACKS_S = JOIN_S = 1.0
ENOUGH_S = 60.0
"""How long an engine that has nothing left to do may take to end by itself."""
Event = Ready | Done | Alive | Fatal


class EngineProcess:
    """An engine in a child process (`eagle3_data.engines.child`), whose output goes to `log`."""

    def __init__(self, settings: ModelSettings, log: Path) -> None:
        self.log = log
        self._model = Path(settings.model_path)
        self._log_start = log.stat().st_size if log.exists() else 0
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            environment = {
                "VLLM_WORKER_MULTIPROC_METHOD": "spawn"
            }  # forked workers would keep the channel open
            self._child = Child(
                "eagle3_data.engines.child", [str(fd)], log, pass_fds=[fd], environment=environment
            )
        self._channel = Connection(ours.detach())
        self._exited = open(os.pidfd_open(self._child.process.pid), "rb", buffering=0)  # noqa: SIM115  a handle to wait on
        self._outgoing: queue.SimpleQueue[ModelSettings | Work | None] = queue.SimpleQueue()
        self._sender = threading.Thread(target=self._pass_on, daemon=True)
        self._sender.start()
        self._outgoing.put(settings)

    def send(self, request: Work) -> None:
        """Hand over a request; never waits. A dead engine is noticed by the next `receive`, not here."""
        self._outgoing.put(request)

    def _pass_on(self) -> None:
        """In a thread of its own: a channel holds less than what may be in flight, so writing to an engine
        that hangs blocks."""
        with contextlib.suppress(OSError):
            while (event := self._outgoing.get()) is not None:
                self._channel.send(event)
            self._channel.send(None)

    def receive(self, timeout_s: float) -> Event | None:
        """The engine's next event; None if it says nothing for `timeout_s` seconds. A dead engine says
        Fatal."""
        ready = wait([self._channel, self._exited.fileno()], timeout_s)
        if self._channel in ready:
            with contextlib.suppress(EOFError, OSError):
                event: Event = self._channel.recv()
                if isinstance(event, Ready):
                    event = replace(event, kernels=tuple(reported_kernels(self.log, self._log_start)))
                return event
        elif not ready:
            return None
        return Fatal(
            describe_situation(
                EngineError, f"the engine's process {self._child.end()}; its output is in {self.log}"
            )
        )

    def explain(self, failure: Failure) -> Failure:
        """The failure with its root cause, if this engine's own part of the log shows it, and with the
        name of a damaged weight file."""
        failure = with_root_cause(failure, self.log, self._log_start)
        return with_damaged_weights(failure, self._model)

    def show_stacks(self) -> None:
        """Have the engine's process write into its log where each of its threads is; for one that hangs."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child.process.pid, signal.SIGUSR1)
            time.sleep(STACKS_S)

    def close(self, stop: threading.Event) -> None:
        """Let the engine finish by itself, unless `stop` is set, then end whatever is left of its process
        group."""
        self._outgoing.put(None)
        deadline = time.monotonic() + ENOUGH_S
        while self._child.process.poll() is None and time.monotonic() < deadline and not stop.wait(0.02):
            pass
        self.kill()

    def kill(self) -> None:
        """End the whole process group at once."""
        self._child.kill()
        self._outgoing.put(None)
        self._sender.join(JOIN_S)  # the other end of the channel is closed, so it waits for nothing
        self._channel.close()
        self._exited.close()
