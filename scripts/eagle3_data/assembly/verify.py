"""Verifies that a finished training set is unchanged.

Assembly seals the set with two files: `states.parquet`, the key, size and checksum of each row's states, and
`seal.json`, size and checksum of every other file and the batches whose validation it relied on. `look`
compares names, sizes and times, in moments; `verify` reads every byte. Both work on a set that was moved.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import count, islice, pairwise, zip_longest
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.assembly.layout import FILES_TABLE, SEAL, STATES, STATES_TABLE, states_name
from eagle3_data.errors import InputError, headline
from eagle3_data.hashing import hash_bytes
from eagle3_data.progress import Progress
from eagle3_data.records import Record, find_json
from eagle3_data.records.batch_index import SealedFile
from eagle3_data.records.checksum import file_checksum
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import check_contents, check_sizes, seal_files
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.validation.verdict import BatchVerdict

TABLE = pa.schema([("key", pa.string()), ("size_bytes", pa.int64()), ("xxh3_128", pa.string())])
REMEDY = (
    "where states have changed, first call `scripts/store.py verify --quarantine` (with --store, where it is"
    " not results/store), since the store's may be the same files; then delete the training set and run the"
    " same command again, which assembles it again"
)
ROWS_AT_ONCE = 10_000
LOOKED_AT = 10_000
"""`look` checks size and time of this many states files, evenly spaced, and the names of all."""


@dataclass(frozen=True)
class SetSeal(Record):
    """The record `seal.json` of a training set. `sealed_at_ns` is the file system's time; `batches` maps each
    batch to the fingerprint of its verdict. Below the folder of each of the `formats` lies a table of its
    rows' files."""

    on_damage: ClassVar[str] = "delete the training set and run the same command again to assemble it again"

    rows: int
    sealed_at_ns: int
    files: dict[str, SealedFile]
    batches: dict[str, str]
    formats: list[str] = field(default_factory=list)


# ---- sealing


def seal_set(
    directory: Path,
    samples: Path,
    store: Store,
    without: Collection[str],
    batches: Mapping[str, str],
    formats: Collection[str] = (),
) -> None:
    """Seal the set in `directory`, whose rows are those of `samples` but for the keys of `without`."""
    rows = 0
    with pq.ParquetWriter(directory / STATES_TABLE, TABLE, compression="zstd") as writer:
        sidecars = (store.read_sidecar(name.key) for name in SampleFile(samples).all_names(without))
        facts = ((one.key, one.size_bytes, one.xxh3_128) for one in sidecars)
        while chunk := [one for one, _ in zip(facts, range(ROWS_AT_ONCE), strict=False)]:
            columns = [pa.array(column, one.type) for column, one in zip(zip(*chunk), TABLE, strict=True)]  # noqa: B905
            writer.write_table(pa.table(columns, schema=TABLE))
            rows += len(chunk)
    names = sorted(_sealed_names(directory, formats))
    sealed_at_ns = (directory / STATES_TABLE).stat().st_mtime_ns
    seal = SetSeal(rows, sealed_at_ns, seal_files(directory, names), dict(batches), list(formats))
    seal.write(directory / SEAL)


def _sealed_names(directory: Path, formats: Collection[str]) -> Iterator[str]:
    """The files that the seal itself describes: all but those of rows, which have tables."""
    for path in directory.iterdir():
        if path.is_file() and not path.name.startswith("."):
            yield path.name
    for name in formats:
        of_rows = set(_files_of_rows(directory / name))
        for path in (directory / name).rglob("*"):
            if path.is_file() and path.relative_to(directory / name).as_posix() not in of_rows:
                yield path.relative_to(directory).as_posix()


def _files_of_rows(folder: Path) -> list[str]:
    names: list[str] = pq.read_table(folder / FILES_TABLE, columns=["name"])["name"].to_pylist()
    return names


# ---- looking


def look(directory: Path) -> list[str]:
    """What shows without reading the files that a set was changed; at most one fault. A set of an earlier
    version has no seal, and nothing is said of it."""
    try:
        seal = _read_seal(directory)
        if seal is None:
            return []
        check_sizes(directory, seal.files)
        for name in seal.files:
            _check_time(directory / name, seal)
        _check_states(directory, seal)
        for name in seal.formats:
            _check_format(directory / name, seal)
    except (InputError, OSError) as error:
        return [str(error) if isinstance(error, InputError) else headline(error)]
    return []


def _read_seal(directory: Path) -> SetSeal | None:
    """None for a set of an earlier version. Raises InputError."""
    provenance = find_json(directory / "provenance.json")
    if provenance is None:
        raise InputError(f"{directory} has no readable provenance.json")
    if "seal" not in provenance:
        return None
    return SetSeal.read(directory / SEAL)


def _check_time(path: Path, seal: SetSeal) -> None:
    facts = path.stat(follow_symlinks=False)
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(f"{path} is not a regular file")
    if facts.st_mtime_ns > seal.sealed_at_ns:
        raise InputError(f"{path} has changed since the set was assembled")


def _check_states(directory: Path, seal: SetSeal) -> None:
    names = _names_of_states(directory)
    expected = {states_name(row) for row in range(seal.rows)}
    if missing := expected - names:
        others = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise InputError(f"{directory / STATES / min(missing)} is missing{others}")
    if extra := names - expected:
        raise InputError(f"{directory / STATES / min(extra)} does not belong to the set")
    sizes = pq.read_table(directory / STATES_TABLE, columns=["size_bytes"])["size_bytes"].to_numpy()
    _check_some(lambda row: directory / STATES / states_name(row), sizes, seal)


def _check_format(folder: Path, seal: SetSeal) -> None:
    table = pq.read_table(folder / FILES_TABLE)
    expected = table["name"].to_pylist()
    _check_names(folder, set(expected), seal)
    _check_some(lambda row: folder / expected[row], table["size_bytes"].to_numpy(), seal)


def _check_some(path_of: Callable[[int], Path], sizes: np.ndarray, seal: SetSeal) -> None:
    """Size and time of some rows' files, evenly spaced."""
    for row in range(0, seal.rows, max(1, seal.rows // LOOKED_AT)):
        path = path_of(row)
        _check_time(path, seal)
        if path.stat().st_size != sizes[row]:
            raise InputError(f"{path} is {path.stat().st_size} bytes long instead of {sizes[row]}")


def _check_names(folder: Path, of_rows: set[str], seal: SetSeal) -> None:
    """Raises InputError where a row's file is missing, or there is a file that is not the set's."""
    names = {
        os.path.relpath(os.path.join(place, name), folder)
        for place, _, files in os.walk(folder)
        for name in files
    }
    known = {Path(name).relative_to(folder.name).as_posix() for name in seal.files if _is_below(name, folder)}
    if missing := of_rows - names:
        raise InputError(f"{folder / min(missing)} is missing")
    if extra := names - of_rows - known:
        raise InputError(f"{folder / min(extra)} does not belong to the set")


def _is_below(name: str, folder: Path) -> bool:
    return name.startswith(f"{folder.name}/")


def _names_of_states(directory: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(directory / STATES)}
    except OSError as error:
        raise InputError(f"{directory / STATES} cannot be listed: {headline(error)}") from error


# ---- verifying


def verify(directory: Path, results: Path | None, threads: int) -> Iterator[str]:
    """Every fault of the set, in one line each. Reads every byte; with `results`, the verdicts of that run
    must be those that the set relied on. Raises InputError where the set has no seal."""
    seal = _read_seal(directory)
    if seal is None:
        raise InputError(
            f"{directory} was assembled by an earlier version, which did not seal it; {SetSeal.on_damage}"
        )
    try:
        check_contents(directory, seal.files)
    except (InputError, OSError) as error:
        yield str(error) if isinstance(error, InputError) else headline(error)
        return  # nothing else can be relied on
    keys = pq.read_table(directory / STATES_TABLE, columns=["key"])["key"].to_pylist()
    for row, (ids, key) in enumerate(zip_longest(_rows_of(directory), keys)):
        if ids is None or key is None:
            found = "more" if key is None else row
            yield f"{directory}: {len(keys)} rows were assembled, and the Arrow files hold {found}"
            break
        if hash_bytes(ids.astype("<i4").tobytes()) != key:
            yield f"row {row} of {directory} holds other tokens than those of its states"
    yield from _faults_of_states(directory, seal, threads)
    for name in seal.formats:
        yield from _faults_of_format(directory / name, seal, threads)
    if results is not None:
        yield from _faults_of_verdicts(RunPaths(results), seal)


def _rows_of(directory: Path) -> Iterator[np.ndarray]:
    """The token ids of each row, in order."""
    state = json.loads((directory / "state.json").read_text(encoding="utf-8"))
    for file in state["_data_files"]:
        with (
            pa.memory_map(str(directory / file["filename"])) as source,
            pa.ipc.open_stream(source) as batches,
        ):
            for batch in batches:
                column = batch.column("input_ids")
                values = column.values.to_numpy()
                yield from (values[start:end] for start, end in pairwise(column.offsets.to_numpy()))


def _faults_of_states(directory: Path, seal: SetSeal, threads: int) -> Iterator[str]:
    try:
        names = _names_of_states(directory)
    except InputError as error:
        yield str(error)
        return
    for name in sorted(names - {states_name(row) for row in range(seal.rows)}):
        yield f"{directory / STATES / name} does not belong to the set"
    with Progress(f"verify {directory}", "samples", seal.rows) as progress:
        rows = (directory / STATES / states_name(row) for row in count())
        yield from _wrong_files(directory / STATES_TABLE, lambda _: rows, threads, progress)


def _faults_of_format(folder: Path, seal: SetSeal, threads: int) -> Iterator[str]:
    try:
        _check_names(folder, set(_files_of_rows(folder)), seal)
    except InputError as error:
        yield str(error)
    with Progress(f"verify {folder}", "rows", seal.rows) as progress:
        yield from _wrong_files(
            folder / FILES_TABLE,
            lambda batch: (folder / name for name in batch.column("name").to_pylist()),
            threads,
            progress,
        )


def _wrong_files(
    table: Path, paths_of: Callable[[pa.RecordBatch], Iterator[Path]], threads: int, progress: Progress
) -> Iterator[str]:
    """The files whose size or checksum is not that of their row in `table`; `paths_of` gives those of some
    rows."""
    with ThreadPoolExecutor(threads, "verify") as pool:
        for batch in pq.ParquetFile(table).iter_batches(ROWS_AT_ONCE):
            paths = list(islice(paths_of(batch), len(batch)))
            facts = (batch.column(name).to_pylist() for name in ("size_bytes", "xxh3_128"))
            for fault in pool.map(_fault_of_file, paths, *facts):
                progress.add(failed=fault is not None)
                if fault:
                    yield fault


def _fault_of_file(path: Path, size_bytes: int, checksum: str) -> str | None:
    try:
        size = path.stat().st_size
        if size != size_bytes:
            return f"{path} is {size} bytes long instead of {size_bytes}"
        if file_checksum(path) != checksum:
            return f"{path} does not have the checksum of the states that were validated"
    except OSError as error:
        return f"{path} cannot be read: {headline(error)}"
    return None


def _faults_of_verdicts(run: RunPaths, seal: SetSeal) -> Iterator[str]:
    for batch, fingerprint in seal.batches.items():
        verdict = BatchVerdict.find(run.verdict(batch))
        if verdict is None or verdict.fingerprint != fingerprint or verdict.rejected:
            yield f"{run.verdict(batch)} does not prove batch {batch} as it is in the set"


def renew_seal(directory: Path) -> None:
    """After every byte was found right: files with a newer time, of a set that was copied, are right, too."""
    seal = SetSeal.read(directory / SEAL)
    times = [path.stat().st_mtime_ns for path in directory.iterdir() if path.is_file() and path.name != SEAL]
    for folder in (STATES, *seal.formats):
        times += [path.stat().st_mtime_ns for path in (directory / folder).rglob("*") if path.is_file()]
    if max(times) > seal.sealed_at_ns:
        replace(seal, sealed_at_ns=max(times)).write(directory / SEAL)
