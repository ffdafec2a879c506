"""Explains in one line why a path cannot be used and what to do about it. Standard library only."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from eagle3_data.errors import StorageError

UNUSABLE = {
    errno.EACCES,
    errno.EEXIST,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
"""Errors that come from the place itself: trying again does not help."""


@contextlib.contextmanager
def explained(path: Path, setting: str = "") -> Iterator[None]:
    """Raises StorageError, with the place and the remedy, for an OSError of the block that comes from the
    place itself. `path` is named where the error names none, `setting` is the key of the configuration that
    chose it."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNUSABLE:
            raise
        raise StorageError(explain_unusable(error, path, setting)) from None


def explain_unusable(error: OSError, path: Path | None = None, setting: str = "") -> str:
    """One line: the place, what is wrong with it, whose it is, and what to do."""
    place = Path(os.fsdecode(error.filename)) if error.filename else path or Path()
    other = f"set {setting} to another directory" if setting else "choose another place"
    blocking = existing_parent(place)
    if error.errno == errno.EROFS:
        return f"{place} is on a read-only file system; mount it writable, or {other}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{place}: permission denied; {blocking} belongs to {owner_of(blocking)}; have the owner call"
            f" `chmod -R g+rwX {blocking}` (and use umask 002 from then on), or {other}"
        )
    if error.errno in (errno.ENOTDIR, errno.EEXIST) and not blocking.is_dir():
        return f"{blocking} is a file where a directory is needed; move it away, or {other}"
    return f"{place}: {os.strerror(error.errno or 0).lower()}; move it away, or {other}"


def owner_of(path: Path) -> str:
    """Owner and mode for a message, such as "alice (mode 0700)"."""
    try:
        status = path.stat()
    except OSError:
        return "somebody else"
    try:
        name = pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        name = f"user {status.st_uid}"
    return f"{name} (mode {stat.S_IMODE(status.st_mode):04o})"


def existing_parent(path: Path) -> Path:
    """The path, or the nearest one above it that exists."""
    path = path.absolute()
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def check_directory(path: Path, *, writable: bool, setting: str = "") -> None:
    """Raises StorageError unless `path` is a directory that can be used, or can be made one."""
    place = existing_parent(path)
    with explained(place, setting):
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "", str(path))
        access = os.R_OK | os.X_OK if place == path.absolute() else os.X_OK
        if not os.access(place, access | (os.W_OK if writable else 0)):
            read_only = writable and os.statvfs(place).f_flag & os.ST_RDONLY
            raise OSError(errno.EROFS if read_only else errno.EACCES, "", str(path))
