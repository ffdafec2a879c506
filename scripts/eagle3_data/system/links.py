"""Links files without copying their bytes. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import tempfile
from pathlib import Path
from typing import Literal

from eagle3_data.system.places import existing_parent

FICLONE = 0x40049409
"""ioctl request of Linux that makes a file share another's blocks (linux/fs.h)."""
Link = Literal["hard link", "reflink"]


def link(source: Path, destination: Path) -> Link | None:
    """Make `destination` the same bytes as `source` without copying them; None where that is impossible: on
    another file system, or where the kernel forbids links to somebody else's files."""
    try:
        os.link(source, destination)
        return "hard link"
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP):
            raise
    try:
        with open(source, "rb") as reader, open(destination, "wb") as writer:
            fcntl.ioctl(writer, FICLONE, reader.fileno())
        return "reflink"
    except OSError:
        destination.unlink(missing_ok=True)
        return None


def possible_link(source: Path, destination: Path) -> Link | Literal["copy"] | None:
    """How files below directory `source` can come to be below directory `destination`, found by trying with
    one of them, or else one of our own; None where that cannot be tried."""
    name = f".link-{secrets.token_hex(8)}"
    trial = existing_parent(destination) / name
    with contextlib.suppress(OSError), contextlib.ExitStack() as cleanup:
        cleanup.callback(trial.unlink, missing_ok=True)
        sample = next(source.glob("*/??/*.safetensors"), None)
        if sample is None:
            file = cleanup.enter_context(
                tempfile.NamedTemporaryFile(dir=existing_parent(source), prefix=name)
            )
            file.write(b"link")
            file.flush()
            sample = Path(file.name)
        return link(sample, trial) or "copy"
    return None
