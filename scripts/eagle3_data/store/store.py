"""The content-addressed store: `<root>/<extraction_id>/<kk>/<key>.safetensors` and its sidecar `<key>.json`.

A sample is in the store when both files are there. Commit order: the states are complete under a name below
`incoming/`, checked, and forced to the disk; then the sidecar is written beside them, forced to the disk and
renamed into place; last the states are. So a reader never sees a torn file, and a states file without a
sidecar does not exist, whatever is killed and whenever the power fails. Directories are not forced to the
disk: after a power failure, a sample may be absent (and is extracted again), but never torn. Two writers of
one key: the first wins, the second's states are thrown away, since the sidecar holds the checksum of exactly
one of them. What is unfinished lies in its writer's folder below `incoming/`, nowhere else, so what a killed
writer left is found without a look at the shelves. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from eagle3_data.errors import NO_ROOM, InputError, StorageError
from eagle3_data.log import say
from eagle3_data.records import JsonObject, MisfitError, Record, remove, write_json
from eagle3_data.system.places import check_directory, explained
from eagle3_data.system.processes import Process

OWNER = "owner.json"
"""In a writer's folder below `incoming/`: the process that writes there. A writer renews its time every few
seconds."""
ABANDONED_S = 900.0
"""What nobody has renewed for so long was left by a process that is gone, wherever it ran."""
DIRECTORIES = ("canary", "claims", "incoming", "quarantine", "reference")
"""In a store, beside its shelves."""
SETTING = "extraction.store"
LOCK = ".lock"
"""In a shelf: held while a sample is committed or taken out. In the store itself: shared by all that rely on
its samples, held alone by what deletes them."""
POLL_S = 0.2


@dataclass(frozen=True)
class Sidecar(Record):
    """What was written with a sample's states: `greedy_token` is the engine's next token, `size_bytes` and
    `xxh3_128` are those of the states file. Further keys say how it was made, for people."""

    on_damage: ClassVar[str] = (
        "run `scripts/store.py verify --quarantine` to remove it; the next run extracts the sample again"
    )

    key: str
    extraction_id: str
    greedy_token: int
    tokens: int
    size_bytes: int
    xxh3_128: str

    def __post_init__(self) -> None:
        if not 0 <= self.greedy_token < 2**31:
            raise MisfitError(f"must be a token id, not {self.greedy_token}", "greedy_token")


class Store:
    """The samples of one extraction id. Creating it touches nothing on the disk."""

    def __init__(self, root: str | os.PathLike[str], extraction_id: str) -> None:
        self.directory = Path(root) / extraction_id
        self.extraction_id = extraction_id

    def states_path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.safetensors"

    def sidecar_path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.json"

    def prepare(self) -> None:
        """Make the store's directory and see that samples can be written to every part of it. Raises
        StorageError."""
        with explained(self.directory, SETTING):
            self.directory.mkdir(parents=True, exist_ok=True)
            for place in (self.directory, *self._subdirectories()):
                check_directory(place, writable=True, setting=SETTING)
            try:
                with tempfile.TemporaryFile(dir=self.directory):
                    pass
            except OSError as error:
                if error.errno not in NO_ROOM:  # that has an end; a pass waits for none, and says so itself
                    raise

    def open_incoming(self, writer: str, owner: Process) -> Path:
        """Make the folder where `writer` (a pass and stripe) has its engine put states before they are
        committed."""
        directory = self.directory / "incoming" / writer
        owner.write(directory / OWNER)
        return directory

    def abandoned(self) -> list[Path]:
        """The folders below `incoming/` whose writer is gone. If that is not known from here, a folder
        is abandoned if nothing in it has changed for ABANDONED_S, as one without an owner is."""
        found, now = [], self.now()
        for directory in sorted(self.directory.glob("incoming/*")):
            owner = Process.find(directory / OWNER)
            alive = owner.is_alive if owner else None
            if alive is False or (alive is None and now - last_change(directory) > ABANDONED_S):
                found.append(directory)
        return found

    def clean_incoming(self) -> int:
        """Remove what writers left behind that are gone (killed); returns how many. Nothing of a living one
        is touched."""
        removed = self.abandoned()
        for directory in removed:
            shutil.rmtree(directory, ignore_errors=True)
        return len(removed)

    def now(self) -> float:
        """The time by the clock that the store's files get theirs from, in seconds since the epoch: on a
        network file system it is not this machine's. Minus infinity where it cannot be asked, so that nothing
        seems old."""
        try:
            os.utime(self.directory)  # takes no room on a full disk
            return self.directory.stat().st_mtime
        except OSError:
            return -math.inf

    def holds(self, key: str) -> bool:
        return self.states_path(key).exists() and self.sidecar_path(key).exists()

    def keys(self) -> set[str]:
        """The keys of all samples in the store, from its directory listings alone. Raises StorageError where
        they cannot be read: a store of somebody else's must not look empty."""
        with explained(self.directory, SETTING):
            return {key for shelf in self.shelves() for key in _keys_of(shelf)}

    def check_readable(self) -> None:
        """Raises StorageError where a part of the store, or the first file in it, cannot be read."""
        with explained(self.directory, SETTING):
            for shelf in self.shelves():
                check_directory(shelf, writable=False, setting=SETTING)
                with os.scandir(shelf) as entries:
                    sample = next((entry.path for entry in entries if not entry.name.startswith(".")), "")
                # a link to nowhere is damage, and not somebody else's file
                if sample and os.path.exists(sample) and not os.access(sample, os.R_OK):
                    raise PermissionError(errno.EACCES, "", sample)

    def shelves(self) -> list[Path]:
        return [path for path in self._entries() if len(path.name) == 2]

    def _subdirectories(self) -> list[Path]:
        return [path for path in self._entries() if len(path.name) == 2 or path.name in DIRECTORIES]

    def _entries(self) -> list[Path]:
        try:
            return sorted(self.directory.iterdir())
        except FileNotFoundError:
            return []

    def read_sidecar(self, key: str) -> Sidecar:
        """Raises InputError if it is missing or damaged."""
        return Sidecar.read(self.sidecar_path(key))

    def commit(self, key: str, states: Path, sidecar: JsonObject) -> bool:
        """Take in complete, checked states that lie on the store's file system. False: another writer was
        first."""
        with open(states, "rb") as file:
            os.fsync(file.fileno())
        with self._locked(key):
            if self.holds(key):
                states.unlink()
                return False
            record = states.with_suffix(".json")
            write_json(record, {"key": key, "extraction_id": self.extraction_id, **sidecar})
            for place in (self.sidecar_path(key), self.states_path(key)):
                if place.is_dir():  # half of a sample that was damaged: nothing can be renamed onto it
                    remove(place)
            os.replace(record, self.sidecar_path(key))
            os.replace(states, self.states_path(key))
            return True

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Alone with a shelf, among threads, processes and, where the file system passes locks on, machines.
        The kernel frees the lock of a process that dies."""
        shelf = self.directory / key[:2]
        shelf.mkdir(parents=True, exist_ok=True)
        with _open_lock(shelf / LOCK) as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def in_use(self, stop: threading.Event | None = None) -> Iterator[None]:
        """What is in the store stays there: nothing is deleted while this is held by anyone. Waits for the
        end of a deletion, unless `stop` is set."""
        try:
            lock = _open_lock(self.directory / LOCK)
        except OSError:  # no store yet, or one that is only read
            yield
            return
        with lock as file:
            waits = False
            while not (stop and stop.is_set()):
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not waits:
                        say(f"store.py gc is deleting samples from {self.directory}; waiting until it ends")
                    waits = True
                    time.sleep(POLL_S)
                except OSError:  # a file system without locks
                    break
            yield

    @contextlib.contextmanager
    def without_users(self) -> Iterator[None]:
        """For deleting: nobody else relies on the store until the end of the block. Raises StorageError where
        somebody does now."""
        with explained(self.directory, SETTING):
            lock = _open_lock(self.directory / LOCK)
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StorageError(
                    f"{self.directory} is in use by {self._users()}; nothing can be deleted until that ends"
                ) from None
            except OSError:
                say(f"{self.directory} is on a file system without locks: do not start a run until this ends")
            yield

    def _users(self) -> str:
        owners = [Process.find(path) for path in sorted(self.directory.glob(f"incoming/*/{OWNER}"))]
        users = [f"process {owner.pid} on {owner.host}" for owner in owners if owner]
        return ", ".join(users) or "another program of this workflow"

    def quarantine(self, key: str, reason: str, unless: Callable[[], bool] = lambda: False) -> None:
        """Take a rejected sample out of the store, kept aside with the reason, so that the next pass extracts
        it again. `unless` is asked when nobody else can change the sample any more."""
        place = self.directory / "quarantine"
        place.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S")
        with self._locked(key):
            there = [
                path for path in (self.states_path(key), self.sidecar_path(key)) if os.path.lexists(path)
            ]
            if not there or unless():
                return
            write_json(place / f"{key}.{stamp}.reason.json", {"key": key, "reason": reason})
            for path in there:
                os.replace(path, place / f"{key}.{stamp}{path.suffix}")

    def was_quarantined(self, key: str) -> bool:
        """Whether the very states that are stored now were rejected before."""
        try:
            now = self.read_sidecar(key)
            copies = (self.directory / "quarantine").glob(f"{key}.????????T??????.json")
            return any(Sidecar.read(copy).xxh3_128 == now.xxh3_128 for copy in copies)
        except (InputError, StorageError):  # what cannot be read is not known to be the same
            return False


def check_root(root: str | os.PathLike[str]) -> None:
    """Raises StorageError where there can be no store at `root`, or not one that can be read."""
    check_directory(Path(root), writable=False, setting=SETTING)


def _open_lock(path: Path) -> IO[bytes]:
    """Network file systems give exclusive locks only to those who may write; elsewhere reading is enough."""
    try:
        return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM) or not path.exists():
            raise
        return open(path, "rb", buffering=0)


def _keys_of(shelf: Path) -> set[str]:
    names = {entry.name for entry in os.scandir(shelf)}
    return {
        name.removesuffix(".safetensors")
        for name in names
        if name.endswith(".safetensors") and f"{name.removesuffix('.safetensors')}.json" in names
    }


def last_change(path: Path) -> float:
    """Modification time of a file, or the newest in a directory; that of something that has just gone is
    infinitely new."""
    try:
        return max(inner.stat().st_mtime for inner in (path, *path.rglob("*")))
    except FileNotFoundError:
        return math.inf
