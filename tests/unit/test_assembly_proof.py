"""Nothing enters a training set that no verdict of this very plan covers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.assembly.proof import require_proof
from eagle3_data.errors import InputError
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.passes.ledger import FailedSample, Gate
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import seal_files
from eagle3_data.validation.verdict import BatchVerdict

IDENTITY = ExtractionIdentity("target", (1, 2), "bfloat16", "none", "engine", {})
FINGERPRINT = IDENTITY.batch_fingerprint("tokens")
GATE = Gate("00000", FINGERPRINT, "ledger", 2, [FailedSample("s", "k", "record")])
VERDICT = BatchVerdict("00000", FINGERPRINT, IDENTITY.extraction_id, 2, 20, 200)


@pytest.fixture
def run(tmp_path: Path) -> RunPaths:
    run = RunPaths(tmp_path / "results/test")
    run.tokens.mkdir(parents=True)
    run.samples.write_bytes(b"samples")
    GATE.write(run.gate("00000"))
    VERDICT.write(run.verdict("00000"))
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
    (lambda run: replace(GATE, samples=3).write(run.gate("00000")), "is not of this plan's batch; delete"),
    (lambda run: replace(GATE, fingerprint="x").write(run.gate("00000")), "is not of this plan's batch"),
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
