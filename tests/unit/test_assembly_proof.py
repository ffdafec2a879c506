"""Nothing enters a training set that no verdict of this very plan covers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import damages
from eagle3_data.assembly.proof import reject_changed, require_proof
from eagle3_data.errors import InputError, SampleError, StorageError
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.passes.ledger import FailedSample, Gate
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.checksum import file_checksum
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import seal_files
from eagle3_data.store import Store
from eagle3_data.validation.reference_verdict import Reference
from eagle3_data.validation.verdict import BatchVerdict

IDENTITY = ExtractionIdentity("target", (1, 2), "bfloat16", "none", "engine", {})
FINGERPRINT = IDENTITY.batch_fingerprint("tokens")
GATE = Gate("00000", FINGERPRINT, "ledger", 2, [FailedSample("s", "k", "record")])
REFERENCE = Reference.without(IDENTITY.extraction_id, "off", "not asked for")
VERDICT = BatchVerdict("00000", FINGERPRINT, IDENTITY.extraction_id, 2, 20, 200)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = RunPaths(tmp_path / "results/test")
    run.tokens.mkdir(parents=True)
    run.samples.write_bytes(b"samples")
    GATE.write(run.gate("00000"))
    VERDICT.write(run.verdict("00000"))
    REFERENCE.write(run.reference)
    return run


def index(run: RunPaths, batches: int = 1) -> BatchIndex:
    entries = {f"{number:05d}": BatchEntry(number, 3, 30, "tokens") for number in range(batches)}
    return BatchIndex(entries, 3, 30, files=seal_files(run.tokens, ["samples.parquet"]))


def test_whole_verdicts_of_this_plan_are_enough(run: RunPaths) -> None:
    require_proof(run, index(run), IDENTITY)


def emptied(path: Path) -> None:
    path.write_text("{}")


SPOILED: list[tuple[Callable[[RunPaths], Any], str]] = [
    (lambda run: run.verdict("00000").unlink(), "does not exist"),
    (lambda run: run.gate("00000").unlink(), "does not exist"),
    (lambda run: run.verdict("00000").write_text(""), "validation/00000.json cannot be read"),
    (lambda run: emptied(run.verdict("00000")), "validation/00000.json"),
    (lambda run: emptied(run.gate("00000")), "extraction/batches/00000.json"),
    (lambda run: GATE.write(run.verdict("00000")), "is damaged"),
    (lambda run: replace(VERDICT, samples=3).write(run.verdict("00000")), r"\(samples\); delete"),
    (lambda run: replace(VERDICT, fingerprint="x").write(run.verdict("00000")), r"\(fingerprint\); delete"),
    (lambda run: replace(VERDICT, extraction_id="x").write(run.verdict("00000")), r"\(extraction_id\)"),
    (lambda run: replace(VERDICT, rejected={"k": "zeros"}).write(run.verdict("00000")), r"\(rejected\)"),
    (lambda run: run.reference.unlink(), r"reference\.json does not exist"),
    (lambda run: emptied(run.reference), r"reference\.json"),
    (lambda run: replace(REFERENCE, status="failed").write(run.reference), "delete .*reference"),
    (lambda run: replace(REFERENCE, extraction_id="x").write(run.reference), "another extraction; delete"),
    (lambda run: replace(GATE, samples=3).write(run.gate("00000")), "to an earlier configuration; delete"),
    (lambda run: replace(GATE, fingerprint="x").write(run.gate("00000")), "to an earlier configuration"),
]


@pytest.mark.parametrize(("spoil", "message"), SPOILED)
def test_anything_less_is_refused(run: RunPaths, spoil: Callable[[RunPaths], Any], message: str) -> None:
    spoil(run)
    with pytest.raises(InputError, match=message):
        require_proof(run, index(run), IDENTITY)


def test_every_batch_needs_one_and_no_batches_are_none(run: RunPaths) -> None:
    with pytest.raises(InputError, match=r"00001\.json does not exist"):
        require_proof(run, index(run, batches=2), IDENTITY)
    with pytest.raises(InputError, match="names no batches"):
        require_proof(run, index(run, batches=0), IDENTITY)


@pytest.mark.parametrize("content", [None, b"sampleS", b"cut"], ids=["lost", "changed", "cut"])
def test_tokens_that_are_not_the_sealed_ones_are_refused(run: RunPaths, content: bytes | None) -> None:
    sealed = index(run)
    run.samples.unlink() if content is None else run.samples.write_bytes(content)
    with pytest.raises(InputError, match=r"samples\.parquet .*; delete it and run the same command again"):
        require_proof(run, sealed, IDENTITY)


KEYS = ["a" * 32, "b" * 32, "c" * 32]
"""The last one is left out."""


@pytest.fixture
def store(run: RunPaths, tmp_path: Path) -> Store:
    """Holds what VERDICT was given for."""
    store = Store(tmp_path / "store", IDENTITY.extraction_id)
    store.directory.mkdir(parents=True)
    for key in KEYS[:2]:
        (part := store.directory / "part").write_bytes(key.encode() * 4)
        facts = {"size_bytes": 128, "xxh3_128": file_checksum(part), "tokens": 3, "greedy_token": 1}
        store.commit(key, part, facts)
    pq.write_table(pa.table({"sample_id": ["s:0", "s:1", "s"], "key": KEYS}), run.samples)
    replace(VERDICT, size_bytes=256).write(run.verdict("00000"))
    return store


def is_rejected(run: RunPaths, store: Store) -> bool:
    """Whether the second sample is rejected, and no other one."""
    try:
        reject_changed(run, index(run), store, KEYS[2:])
    except SampleError as error:
        assert "1 sample changed" in str(error) and "the same command extracts what changed again" in str(
            error
        )
        assert list(BatchVerdict.read(run.rejected("00000")).rejected) == KEYS[1:2]
        return True
    assert not run.rejected("00000").exists()
    return False


def after_validation(damage: damages.Damage) -> damages.Damage:
    """The clock of a test may not have moved on."""

    def change(path: Path) -> None:
        damage(path)
        later = path.lstat().st_mtime_ns + 10**9
        os.utime(path, ns=(later, later), follow_symlinks=False)

    return change


SAFE = {"gone", "a dead link", "flipped"}
"""Of these kinds there is nothing that can be given a time, or they keep it."""


def test_samples_as_they_were_validated_are_taken(run: RunPaths, store: Store) -> None:
    assert not is_rejected(run, store)
    for path in (store.states_path(KEYS[0]), store.sidecar_path(KEYS[1])):
        after_validation(Path.touch)(path)
    assert not is_rejected(run, store), "read, and found to be the same"


@pytest.mark.parametrize("kind", damages.STATES)
def test_states_that_changed_after_validation_are_rejected(run: RunPaths, store: Store, kind: str) -> None:
    damage = damages.STATES[kind]
    path = store.states_path(KEYS[1])
    if kind == "flipped":
        damage(path)
        assert not is_rejected(run, store), "only reading every byte shows it"
        damage(path)
        damage = damages.flip
    (damage if kind in SAFE - {"flipped"} else after_validation(damage))(path)
    assert is_rejected(run, store)


def test_states_that_may_not_be_read_are_not_rejected(
    monkeypatch: pytest.MonkeyPatch, run: RunPaths, store: Store
) -> None:
    after_validation(Path.touch)(path := store.states_path(KEYS[1]))
    monkeypatch.setattr(os, "access", lambda place, _: place != path)
    with pytest.raises(StorageError, match="no permission to read"):
        reject_changed(run, index(run), store, KEYS[2:])
    assert not run.rejected("00000").exists()
