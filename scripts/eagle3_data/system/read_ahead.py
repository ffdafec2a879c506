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
    stop, read = threading.Event(), [0]
    reader = threading.Thread(target=_read, args=(files, stop, read), daemon=True)
    started = time.monotonic()
    reader.start()
    try:
        yield
    finally:
        stop.set()
        reader.join()
        passed_s = time.monotonic() - started
        say(f"read ahead {read[0] / 1e9:,.1f} of {size / 1e9:,.1f} GB of {what} in {passed_s:.1f} s")


def _read(files: Sequence[Path], stop: threading.Event, read: list[int]) -> None:
    """Adds to the one number of `read`. A file that cannot be read is for its real reader to complain of."""
    buffer = bytearray(CHUNK_BYTES)
    for path in files:
        with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
            while not stop.is_set() and (count := file.readinto(buffer)):
                read[0] += count


def _size(files: Sequence[Path]) -> int:
    size = 0
    for path in files:
        with contextlib.suppress(OSError):
            size += path.stat().st_size
    return size
