"""Reads files into the page cache while something else has to be done first. Standard library only."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from eagle3_data.log import say
from eagle3_data.system.memory import available_bytes

CHUNK_BYTES = 16 << 20
SHARE = 0.5
"""Of the memory that is available: what does not stay there until it is needed is read in vain."""


@contextmanager
def reading_ahead(files: Sequence[Path], what: str) -> Iterator[None]:
    """Read `files`, one after the other, until the block ends, and say how far that came, or why it was left:
    `what` names them."""
    size, available = _size(files), available_bytes()
    if size > SHARE * available:
        say(
            f"{what} ({size / 1e9:,.1f} GB) are not read ahead: only {available / 1e9:,.1f} GB of memory are"
            " available"
        )
        yield
        return
    reader = _Reader(files)
    reader.start()
    try:
        yield
    finally:
        reader.stop.set()
        reader.join()
        done = f"{reader.size_bytes / 1e9:,.1f} of {size / 1e9:,.1f} GB of {what}"
        say(f"read ahead {done} in {reader.elapsed_s:.1f} s")


class _Reader(threading.Thread):
    """A file that cannot be read is for its real reader to complain of."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__(daemon=True)
        self._files = files
        self.stop = threading.Event()
        self.size_bytes, self.elapsed_s = 0, 0.0

    def run(self) -> None:
        started, buffer = time.monotonic(), bytearray(CHUNK_BYTES)
        for path in self._files:
            with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
                while not self.stop.is_set() and (count := file.readinto(buffer)):
                    self.size_bytes += count
        self.elapsed_s = time.monotonic() - started


def _size(files: Sequence[Path]) -> int:
    size = 0
    for path in files:
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size
