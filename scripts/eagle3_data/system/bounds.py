"""Bounds on time and memory of code that comes with a model, such as its chat template. Standard library
only."""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from eagle3_data.errors import Eagle3DataError

SECONDS = 20.0
"""Processor time of one call: other work on the machine does not count."""

MEMORY_BYTES = 3 << 30
CALLS_A_LOOK = 64
"""The size of this process is read once per this many calls: reading costs as much as a short call."""

Result = TypeVar("Result")


class RunawayError(Eagle3DataError):
    """A call was ended since it took too long or too much memory."""


class _TimeIsUpError(BaseException):
    """Not an Exception, so that the code that is to be ended does not handle it."""


def _end(*_: Any) -> None:
    raise _TimeIsUpError


class _Bounds:
    def __init__(self) -> None:
        self._ceiling_bytes = self._calls_left = 0

    def call(self, function: Callable[[], Result]) -> Result:
        look = self._calls_left <= 0
        if look:
            self._ceiling_bytes, self._calls_left = _size_bytes() + MEMORY_BYTES, CALLS_A_LOOK
        self._calls_left -= 1
        try:
            return self._call(function)
        except _TimeIsUpError:
            raise RunawayError(f"ran for more than {SECONDS:g} s of processor time and was ended") from None
        except MemoryError:
            if look:
                raise RunawayError(f"asked for more than {MEMORY_BYTES / 2**30:g} GiB of memory") from None
        self._calls_left = 0  # what else this process holds may have grown since
        return self.call(function)

    def _call(self, function: Callable[[], Result]) -> Result:
        if signal.getsignal(signal.SIGPROF) is not _end:
            signal.signal(signal.SIGPROF, _end)
        soft, hard = resource.getrlimit(resource.RLIMIT_AS)
        ceiling = self._ceiling_bytes if soft == resource.RLIM_INFINITY else min(soft, self._ceiling_bytes)
        try:
            resource.setrlimit(resource.RLIMIT_AS, (ceiling, hard))
            signal.setitimer(signal.ITIMER_PROF, SECONDS, 1.0)  # again each second, if it was handled
            try:
                return function()
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)  # time may have been up in the line above
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


_bounds = _Bounds()


def call_bounded(function: Callable[[], Result]) -> Result:
    """The result of a call of Python code. Raises RunawayError if it takes more than SECONDS of processor
    time or MEMORY_BYTES.

    Only in the main thread, since signals arrive there; elsewhere there are no bounds.
    """
    if threading.current_thread() is not threading.main_thread():
        return function()
    return _bounds.call(function)


def _size_bytes() -> int:
    """Address space of this process."""
    with open("/proc/self/statm", "rb", 0) as file:
        return int(file.read(64).split(b" ", 1)[0]) * os.sysconf("SC_PAGE_SIZE")
