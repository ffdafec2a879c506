"""Reads a sample once: the proofs of structure, numbers and checksum, and the rows that other proofs need."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, replace

import numpy as np
import xxhash

from eagle3_data.errors import InputError, SampleError, message_of
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import Sample
from eagle3_data.store import Sidecar, Store
from eagle3_data.store.magnitudes import FindLargest, find_largest
from eagle3_data.store.states import NumberCheck, States, open_states, structure_problems
from eagle3_data.validation.coverage import NUMBERS, STRUCTURE
from eagle3_data.validation.token_loss import tested_rows

BLOCK_BYTES = 1 << 20
"""Hashed and looked at while it is in the processor's cache."""
RELEASED_BYTES = 8 << 20
"""Of a mapped file, what is kept in memory at a time."""
NO_ROWS = np.empty(0, int)
NORM_ROWS = 16
"""Of a sample, evenly spaced, whose norms enter the table."""
NEAR_ZERO_OCTAVES = 10
"""A row counts as near zero where its largest number is smaller than the slot's median by 2^-10."""


@dataclass(frozen=True)
class SlotSizes:
    """Of one slot of a sample: how large its rows are."""

    norms: tuple[float, float, float]
    """5 %, 50 % and 95 % quantiles over some rows."""
    near_zero: int


@dataclass(frozen=True)
class LastSlot:
    """What the proofs of the last slot need: float32 `states` [n + 1, H] of the tested `rows` [n] and of the
    last token, the tokens [n] that follow the tested rows, and the engine's next token."""

    states: np.ndarray
    rows: np.ndarray
    next_tokens: np.ndarray
    greedy_token: int


@dataclass(frozen=True)
class Reading:
    """What one read of a sample gives. `problem` says why it is rejected, empty where it is not; then there
    is nothing else. `last_row` is the hash of its last state."""

    problem: str = ""
    size_bytes: int = 0
    last_row: int = 0
    slots: tuple[SlotSizes, ...] = ()
    last_slot: LastSlot | None = None


def read_sample(
    sample: Sample,
    store: Store,
    identity: ExtractionIdentity,
    hidden_size: int,
    find_largest: FindLargest = find_largest,
) -> Reading:
    """Memory does not depend on the sample's length. Raises StorageError where a file may not be read: that
    rejects nothing."""
    try:
        return _read(sample, store, identity, hidden_size, find_largest)
    except SampleError as error:
        cause = f" ({message_of(error.__cause__)})" if error.__cause__ else ""
        return Reading(problem=message_of(error) + cause)


def _read(
    sample: Sample, store: Store, identity: ExtractionIdentity, hidden_size: int, find_largest: FindLargest
) -> Reading:
    tokens = len(sample.token_ids)
    tested, some = tested_rows(sample.key, tokens), _evenly(tokens)
    rows = np.union1d(np.append(tested, tokens - 1), some)
    checked = open_checked(sample, store, identity, hidden_size, rows, find_largest)
    tested_and_last = np.append(np.searchsorted(rows, tested), len(rows) - 1)
    return Reading(
        size_bytes=checked.sidecar.size_bytes,
        last_row=xxhash.xxh3_64_intdigest(checked.rows.bits[-1].tobytes()),
        slots=_sizes(checked.rows.values(np.searchsorted(rows, some)), checked),
        last_slot=LastSlot(
            checked.rows.values(tested_and_last, -1),
            tested,
            checked.states.token_ids[tested + 1],
            checked.sidecar.greedy_token,
        ),
    )


@dataclass(frozen=True)
class Checked:
    """A stored sample whose structure, numbers and checksum are right. `largest` [T, layers] is each row's
    largest magnitude, as bits; `rows` are copies of the rows that were asked for."""

    states: States
    sidecar: Sidecar
    largest: np.ndarray
    rows: States


def open_checked(
    sample: Sample,
    store: Store,
    identity: ExtractionIdentity,
    hidden_size: int,
    rows: np.ndarray = NO_ROWS,
    find_largest: FindLargest = find_largest,
) -> Checked:
    """Read the states of a stored sample, and keep some `rows`, ascending. Raises SampleError where sidecar,
    checksum, structure or numbers are not as they must be, StorageError where the sample may not be read."""
    path = store.states_path(sample.key)
    try:
        sidecar, states = store.read_sidecar(sample.key), open_states(path)
    except (InputError, SampleError) as error:
        raise SampleError(f"unreadable: {message_of(error)}") from error.__cause__
    if (sidecar.key, sidecar.extraction_id) != (sample.key, identity.extraction_id):
        raise SampleError(f"sidecar: it is that of {sidecar.extraction_id}/{sidecar.key}")
    problems = structure_problems(
        states, sample.token_ids, len(identity.layers), hidden_size, identity.stored_dtype
    )
    if problems or states.file is None:
        proof, look = STRUCTURE, None
        checksum = file_checksum(path)
    else:
        proof, look = NUMBERS, _Look(states, rows, find_largest)
        checksum, problems = look.through(states.file), look.check.problems()
    if path.stat().st_size != sidecar.size_bytes or checksum != sidecar.xxh3_128:
        raise SampleError(f"checksum: {path.name} is not the file that was committed")
    if states.provenance.get("extraction_id") != identity.extraction_id:
        told = states.provenance.get("extraction_id")
        problems.append(
            ("wrong-extraction", f"the file says extraction id {told}, expected {identity.extraction_id}")
        )
    if problems or look is None:
        raise SampleError(f"{proof}: " + "; ".join(f"{name}: {message}" for name, message in problems))
    scales = None if states.scales is None else states.scales[rows]
    kept = replace(states, bits=look.kept, scales=scales, file=None)
    return Checked(states, sidecar, look.check.largest, kept)


class _Look:
    """Everything that one read of a mapped file gives, block by block, each while it is in the cache."""

    def __init__(self, states: States, rows: np.ndarray, find_largest: FindLargest) -> None:
        self._states, self._rows = states, rows
        self.check = NumberCheck(states, find_largest)
        self.kept = np.empty((len(rows), *states.bits.shape[1:]), states.bits.dtype)

    def through(self, file: mmap.mmap) -> str:
        """Look at the numbers, and keep rows; returns the checksum of the file."""
        bits, begin = self._states.bits, self._states.begin
        digest, whole = xxhash.xxh3_128(), memoryview(file)
        digest.update(whole[:begin])
        row_bytes = max(1, bits[:1].nbytes)
        step = max(1, BLOCK_BYTES // row_bytes)
        release = max(1, RELEASED_BYTES // (step * row_bytes))
        wanted = np.searchsorted(self._rows, range(0, len(bits) + step, step)).tolist()
        for number, start in enumerate(range(0, len(bits), step)):
            digest.update(bits[start : start + step].data)
            self.check.take(start, start + step)
            first, last = wanted[number : number + 2]
            if first < last:
                self.kept[first:last] = bits[self._rows[first:last]]
            if number % release == release - 1:
                file.madvise(mmap.MADV_DONTNEED)
        digest.update(whole[begin + bits.nbytes :])
        return digest.hexdigest()


def _evenly(tokens: int) -> np.ndarray:
    """The rows whose norms enter the table."""
    return np.unique(np.linspace(0, tokens - 1, NORM_ROWS).astype(int))


def _sizes(values: np.ndarray, checked: Checked) -> tuple[SlotSizes, ...]:
    """Of the slots, by the `values` [rows, layers, H] of some rows, and the largest magnitudes of all."""
    norms = np.sqrt(np.einsum("tlh,tlh->tl", values, values))
    quantiles = np.quantile(norms, (0.05, 0.5, 0.95), axis=0).T
    magnitudes, octave = checked.states.magnitudes(checked.largest)
    middle = np.sort(magnitudes.T, axis=1)[:, len(magnitudes) // 2]
    near_zero = (magnitudes + (NEAR_ZERO_OCTAVES << octave) < middle).sum(axis=0)
    return tuple(
        SlotSizes((float(low), float(middle), float(high)), int(count))
        for (low, middle, high), count in zip(quantiles, near_zero, strict=True)
    )
