"""One log format for every program: time, level, message, on stderr. Standard library only."""

from __future__ import annotations

import contextlib
import logging
import sys


class _StderrHandler(logging.Handler):
    """Writes to whatever stderr is at that moment. A line that finds no room on the disk is lost: the work
    continues."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            print(self.format(record), file=sys.stderr, flush=True)


LOG = logging.getLogger("eagle3_data")
LOG.setLevel(logging.INFO)
LOG.propagate = False
if not LOG.handlers:
    _handler = _StderrHandler()
    _handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S"))
    LOG.addHandler(_handler)


def say(message: str) -> None:
    """A line for the rule's log, with time and level."""
    LOG.info(message)


def warn(message: str) -> None:
    """The same, of what may be wrong although the work continues."""
    LOG.warning(message)
