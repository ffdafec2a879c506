"""Reads a sample once: the proofs of structure, numbers and checksum, and the rows that other proofs need."""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import numpy as np
import xxhash

from eagle3_data.errors import InputError, SampleError, message_of
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import Sample
from eagle3_data.store import Sidecar, Store
from eagle3_data.store.states import NumberCheck, States, open_states, structure_problems
from eagle3_data.validation.coverage import NUMBERS, STRUCTURE
from eagle3_data.validation.token_loss import tested_rows

BLOCK_BYTES = 1 << 19
"""Hashed and looked at while it is in the processor's cache."""
RELEASED_BYTES = 32 << 20
"""Of a mapped file, what is kept in memory at a time."""
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


def read_sample(sample: Sample, store: Store, identity: ExtractionIdentity, hidden_size: int) -> Reading:
    """Memory does not depend on the sample's length. Raises StorageError where a file may not be read: that
    rejects nothing."""
    try:
        return _read(sample, store, identity, hidden_size)
    except SampleError as error:
        cause = f" ({message_of(error.__cause__)})" if error.__cause__ else ""
        return Reading(problem=message_of(error) + cause)


def _read(sample: Sample, store: Store, identity: ExtractionIdentity, hidden_size: int) -> Reading:
    states, sidecar, largest = open_checked(sample, store, identity, hidden_size)
    return Reading(
        size_bytes=sidecar.size_bytes,
        last_row=xxhash.xxh3_64_intdigest(states.bits[-1].tobytes()),
        slots=_sizes(states, largest),
        last_slot=_last_slot(sample, states, sidecar),
    )


def open_checked(
    sample: Sample, store: Store, identity: ExtractionIdentity, hidden_size: int
) -> tuple[States, Sidecar, np.ndarray]:
    """The states of a stored sample, its sidecar, and each row's largest magnitude, as bits [T, layers].
    Raises SampleError where sidecar, checksum, structure or numbers are not as they must be, StorageError
    where the sample may not be read."""
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
    proof = STRUCTURE
    if problems or states.file is None:
        checksum, largest = file_checksum(path), np.zeros((0, 0))
    else:
        checksum, check = _look(states, states.file)
        proof, problems, largest = NUMBERS, check.problems(), check.largest
    if path.stat().st_size != sidecar.size_bytes or checksum != sidecar.xxh3_128:
        raise SampleError(f"checksum: {path.name} is not the file that was committed")
    if states.provenance.get("extraction_id") != identity.extraction_id:
        told = states.provenance.get("extraction_id")
        problems.append(
            ("wrong-extraction", f"the file says extraction id {told}, expected {identity.extraction_id}")
        )
    if problems:
        raise SampleError(f"{proof}: " + "; ".join(f"{name}: {message}" for name, message in problems))
    return states, sidecar, largest


def _look(states: States, file: mmap.mmap) -> tuple[str, NumberCheck]:
    """The file's checksum, and its numbers looked at."""
    digest, check = xxhash.xxh3_128(), NumberCheck(states)
    whole, end = memoryview(file), states.begin + states.bits.nbytes
    digest.update(whole[: states.begin])
    row_bytes = max(1, states.bits[:1].nbytes)
    step = max(1, BLOCK_BYTES // row_bytes)
    release = max(1, RELEASED_BYTES // (step * row_bytes))
    for number, start in enumerate(range(0, len(states.bits), step)):
        digest.update(states.bits[start : start + step].data)
        check.take(start, start + step)
        if number % release == release - 1:
            file.madvise(mmap.MADV_DONTNEED)
    digest.update(whole[end:])
    return digest.hexdigest(), check


def _sizes(states: States, largest: np.ndarray) -> tuple[SlotSizes, ...]:
    some = np.unique(np.linspace(0, len(states.bits) - 1, NORM_ROWS).astype(int))
    values = states.values(some)
    norms = np.sqrt(np.einsum("tlh,tlh->tl", values, values))
    quantiles = np.quantile(norms, (0.05, 0.5, 0.95), axis=0).T
    magnitudes, octave = states.magnitudes(largest)
    near_zero = (magnitudes + (NEAR_ZERO_OCTAVES << octave) < np.median(magnitudes, axis=0)).sum(axis=0)
    return tuple(
        SlotSizes((float(low), float(middle), float(high)), int(count))
        for (low, middle, high), count in zip(quantiles, near_zero, strict=True)
    )


def _last_slot(sample: Sample, states: States, sidecar: Sidecar) -> LastSlot:
    rows = tested_rows(sample.key, len(sample.token_ids))
    values = states.values(np.append(rows, len(sample.token_ids) - 1), -1)
    return LastSlot(values, rows, states.token_ids[rows + 1].copy(), sidecar.greedy_token)
