"""Looking after the store: what is in it, whether it is still what was written, and what no run refers to any
more."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eagle3_data.errors import InputError, StorageError, headline, message_of
from eagle3_data.passes.batch_records import BatchRecord
from eagle3_data.passes.lease import LeaseState, is_live
from eagle3_data.passes.ledger import Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.progress import Progress
from eagle3_data.records import JsonObject, read_json
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import SampleFile
from eagle3_data.store import ABANDONED_S, Sidecar, Store, last_change
from eagle3_data.system.places import check_directory, explained, owner_of

IDENTITY = "identity.json"
DAY_S = 86400.0
STATES, SIDECAR, PART = ".safetensors", ".json", ".part"


def open_stores(root: Path, extraction_id: str | None = None) -> list[Store]:
    """The store of each extraction id below `root`, or that of the given one. Raises InputError where there
    is none, StorageError where `root` cannot be read."""
    if not root.is_dir():
        raise InputError(f"there is no store {root}; give the directory of `extraction.store` with --store")
    with explained(root):
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    stores = [Store(root, name) for name in names if _is_store(root / name)]
    if extraction_id is None:
        return stores
    chosen = [store for store in stores if store.extraction_id == extraction_id]
    if not chosen:
        known = ", ".join(store.extraction_id for store in stores) or "none"
        raise InputError(f"{root} has no extraction id {extraction_id!r}; known here: {known}")
    return chosen


def _is_store(directory: Path) -> bool:
    """Whether a directory is an extraction id's; one that cannot be read is assumed to be, and then
    reported."""
    return not os.access(directory, os.X_OK) or (directory / IDENTITY).exists()


# ---- what is there


@dataclass
class Shelves:
    """What is in the shelves of a store by what it is: states and sidecars by key (a sample needs both),
    unfinished records."""

    states: dict[str, Path]
    sidecars: dict[str, Path]
    parts: list[Path]

    @classmethod
    def of(cls, store: Store) -> Shelves:
        """Raises StorageError where a shelf cannot be read: its samples would seem absent."""
        shelves = cls({}, {}, [])
        with explained(store.directory):
            paths = sorted(path for shelf in store.shelves() for path in shelf.iterdir())
        for path in paths:
            if path.suffix == STATES:
                shelves.states[path.stem] = path
            elif path.suffix == PART:
                shelves.parts.append(path)
            elif path.suffix == SIDECAR:
                shelves.sidecars[path.stem] = path
        return shelves

    @property
    def samples(self) -> list[str]:
        return sorted(self.states.keys() & self.sidecars.keys())

    @property
    def orphan_sidecars(self) -> list[Path]:
        return [path for key, path in self.sidecars.items() if key not in self.states]

    @property
    def orphan_states(self) -> list[Path]:
        return [path for key, path in self.states.items() if key not in self.sidecars]


@dataclass(frozen=True)
class Summary:
    """One extraction id in short. `tokens` is None where the sidecars were not asked."""

    extraction_id: str
    identity: JsonObject
    samples: int
    tokens: int | None
    size_bytes: int
    quarantined: int
    orphan_sidecars: int


def summarize(store: Store, *, count_tokens: bool = False) -> Summary:
    """Count from directory listings; `count_tokens` reads every sidecar, too. Raises StorageError or
    InputError where something cannot be read."""
    with explained(store.directory):
        check_directory(store.directory, writable=False)
    shelves = Shelves.of(store)
    samples = shelves.samples
    return Summary(
        extraction_id=store.extraction_id,
        identity=read_json(store.directory / IDENTITY),
        samples=len(samples),
        tokens=sum(_tokens_of(store, key) for key in samples) if count_tokens else None,
        size_bytes=sum(shelves.states[key].stat().st_size for key in samples),
        quarantined=sum(1 for _ in store.directory.glob(f"quarantine/*{STATES}")),
        orphan_sidecars=len(shelves.orphan_sidecars),
    )


def _tokens_of(store: Store, key: str) -> int:
    return store.read_sidecar(key).tokens


# ---- whether it is what was written


@dataclass(frozen=True)
class Fault:
    """Why a sample is not known to be whole. Of one that may not be read, nothing is known."""

    key: str
    text: str
    is_damage: bool = True


def verify(store: Store, threads: int) -> Iterator[Fault]:
    """What is wrong, in the order of keys. Reads every byte. Raises StorageError where the store cannot be
    listed."""
    with store.in_use(), ThreadPoolExecutor(threads, "verify") as pool:
        keys = Shelves.of(store).samples
        with Progress(f"verify {store.extraction_id}", "samples", len(keys)) as progress:
            for fault in pool.map(lambda key: fault_of(store, key), keys):
                progress.add(failed=fault is not None)
                if fault is not None:
                    yield fault


def fault_of(store: Store, key: str) -> Fault | None:
    """What is wrong with a sample's files; None if nothing is."""
    path, sidecar_path = store.states_path(key), store.sidecar_path(key)
    try:
        if text := _irregular(sidecar_path) or _irregular(path):
            return Fault(key, text)
        for file in (sidecar_path, path):
            if not os.access(file, os.R_OK):
                return Fault(key, f"no permission to read {file.name}; it belongs to {owner_of(file)}", False)
        sidecar = store.read_sidecar(key)
        if (sidecar.key, sidecar.extraction_id) != (key, store.extraction_id):
            return Fault(key, f"its sidecar is that of {sidecar.extraction_id}/{sidecar.key}")
        text = file_fault(path, sidecar)
    except (PermissionError, StorageError) as error:  # some network file systems say so only now
        return Fault(key, message_of(error), is_damage=False)
    except (InputError, OSError) as error:
        text = f"it cannot be read: {headline(error)}"
    return Fault(key, text) if text else None


def file_fault(path: Path, sidecar: Sidecar) -> str:
    """How a file differs from the states that a sidecar describes; empty if it does not. `path` may be a copy
    outside of the store. Raises OSError."""
    if text := _irregular(path):
        return text
    size, expected = path.stat().st_size, sidecar.size_bytes
    if size != expected:
        return f"{size:,} bytes, {expected:,} were written"
    checksum, written = file_checksum(path), sidecar.xxh3_128
    return "" if checksum == written else f"checksum {checksum}, but {written} was written"


def _irregular(path: Path) -> str:
    """What a path is instead of a file: opening a pipe would wait forever. Empty for a file."""
    mode = path.stat().st_mode
    if stat.S_ISREG(mode):
        return ""
    kind = "a directory" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
    return f"{path.name} is {kind}, not a file"


def quarantine(store: Store, fault: Fault) -> None:
    """Take a sample out of the store unless it has been replaced since the fault was found."""
    store.quarantine(fault.key, fault.text, unless=lambda: fault_of(store, fault.key) != fault)


# ---- what no run refers to


@dataclass(frozen=True)
class Run:
    """A run's directory as far as it refers to samples."""

    directory: Path

    @property
    def _paths(self) -> PassPaths:
        return PassPaths(self.directory / "extraction")

    def check_readable(self) -> None:
        """Raises StorageError for a directory with records that cannot be listed."""
        root = self._paths.root
        for place in (root, root / "records", root / "running", root / "passes", self.directory / "tokens"):
            check_directory(place, writable=False)
        for place in root.glob("passes/*"):
            check_directory(place, writable=False)

    def references(self, extraction_id: str) -> set[str]:
        """The keys this run needs of an extraction id: those of its finished batches, and all its samples
        while its newest pass or a running one extracts with that id. Raises InputError where a record cannot
        be read: then nothing is sure.
        """
        records = [BatchRecord.read(path) for path in sorted(self._paths.root.glob("records/*.json"))]
        keys = {
            sample.key
            for record in records
            if record.extraction_id == extraction_id
            for sample in record.samples
        }
        if extraction_id in self._current_ids:
            keys |= self._sample_keys
        return keys

    @cached_property
    def _current_ids(self) -> set[str]:
        passes = self._paths.root.glob("passes/[0-9]*/*.json")
        newest = max((int(path.parent.name) for path in passes), default=None)
        ledgers = [
            Ledger.read(path)
            for path in self._paths.root.glob("passes/[0-9]*/*.json")
            if int(path.parent.name) == newest
        ]
        return {record.extraction_id for record in [*ledgers, *(lease for _, lease in self.leases())]}

    @cached_property
    def _sample_keys(self) -> set[str]:
        path = self.directory / "tokens/samples.parquet"
        if not path.exists():
            raise InputError(
                f"{self.directory} has been extracted, but {path} is missing, so its samples are unknown;"
                " tokenize it again, or remove the run"
            )
        return {name.key for name in SampleFile(path).all_names()}

    def leases(self) -> list[tuple[Path, LeaseState]]:
        """Of passes that run, or were killed."""
        leases = []
        for path in self._paths.root.glob("running/*.json"):
            state = LeaseState.find(path)
            if state is not None:
                leases.append((path, state))
            elif path.exists():
                raise InputError(
                    f"{path} cannot be read, so what is being extracted is unknown; try again, or delete it"
                    " if no pass is running"
                )
        return leases


def find_runs(results: Sequence[Path]) -> list[Run]:
    """Every run below the directories. Raises InputError for a directory without any, and StorageError for
    what cannot be read: all samples would seem unneeded."""
    runs = []
    for directory in results:
        with explained(directory):
            places = sorted(directory.iterdir()) if directory.is_dir() else []
            for place in places:
                if place.is_dir():
                    check_directory(place, writable=False)
        found = [Run(place) for place in places if (place / "extraction").exists()]
        if not found:
            raise InputError(
                f"{directory} holds no extracted run; give the directory of the runs with --results"
            )
        runs += found
    for run in runs:
        run.check_readable()
    return runs


def refuse_while_running(runs: Iterable[Run], store: Store) -> None:
    """Raises InputError if a pass extracts into the store: also on file systems without locks."""
    for run in runs:
        for path, lease in run.leases():
            if lease.extraction_id == store.extraction_id and is_live(path, lease):
                raise InputError(
                    f"a pass of {run.directory} is extracting {lease.extraction_id}; nothing can be deleted"
                    " until it ends"
                )


@dataclass(frozen=True)
class Garbage:
    """Files that belong together and why they are not needed. They are deleted in this order, so no half of a
    sample is ever seen as whole."""

    reason: str
    paths: tuple[Path, ...]

    @property
    def size_bytes(self) -> int:
        return sum(_size(path) for path in self.paths)

    def delete(self) -> None:
        for path in self.paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def find_garbage(store: Store, runs: Sequence[Run], quarantine_days: float) -> Iterator[Garbage]:
    """What may go. Of a killed writer, what a pass would remove, too, and what it left among the samples once
    nobody can be at work on it."""
    needed = set().union(*(run.references(store.extraction_id) for run in runs))
    shelves = Shelves.of(store)
    for key in shelves.samples:
        if key not in needed:
            yield Garbage("no run refers to it", (shelves.states[key], shelves.sidecars[key]))
    now = store.now()
    for reason, paths in (
        ("sidecar without states", shelves.orphan_sidecars),
        ("states without a sidecar", shelves.orphan_states),
        ("unfinished record", shelves.parts),
    ):
        yield from (Garbage(reason, (path,)) for path in paths if now - last_change(path) > ABANDONED_S)
    yield from (Garbage("left behind by a writer", (directory,)) for directory in store.abandoned())
    for reason_file in sorted(
        store.directory.glob("quarantine/*.reason.json")
    ):  # written then; the sample's own files are older
        if time.time() - last_change(reason_file) > quarantine_days * DAY_S:
            sample = [
                reason_file.with_name(reason_file.name.removesuffix(".reason.json") + suffix)
                for suffix in (STATES, SIDECAR)
            ]
            yield Garbage(
                f"quarantined more than {quarantine_days:g} days ago",
                (*(path for path in sample if path.exists()), reason_file),
            )


def _size(path: Path) -> int:
    return sum(inner.stat().st_size for inner in (path, *path.rglob("*")) if inner.is_file())
