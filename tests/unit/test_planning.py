"""What Snakemake makes again since it is damaged: every record whose content is no record."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import BinaryIO

import pytest

import damages
from eagle3_data.config import load_config
from eagle3_data.errors import InputError, StorageError
from eagle3_data.findings import Findings
from eagle3_data.passes.batch_records import BatchRecord
from eagle3_data.passes.ledger import BatchOutcome, Gate, Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.planning import Plan
from eagle3_data.records import open_regular, record
from eagle3_data.records.batch_index import BatchEntry, BatchIndex, SampleName
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import seal_files
from eagle3_data.target import TargetDescription
from eagle3_data.validation.verdict import BatchVerdict, ValidationLedger

FACTS = {"number": "001", "stripe": 0, "extraction_id": "e"}
TARGET = TargetDescription(
    path="t",
    architecture="LlamaForCausalLM",
    text_architecture="LlamaForCausalLM",
    model_type="llama",
    num_hidden_layers=8,
    hidden_size=4,
    vocab_size=100,
    max_position_embeddings=100,
    quantization="none",
    weights_bytes=1,
    needs_remote_code=False,
    fingerprint="f",
)
SAME = {"another fingerprint", "another id", "fewer samples", "gone", "no batches"}
"""Whole records, of something else, which planning or assembly compares; and what is simply not there."""
FILES = {
    "target": ("target.json", damages.RECORD),
    "index": ("tokens/batches.json", damages.INDEX),
    "report": ("compatibility/report.json", damages.RECORD),
    "record": ("extraction/records/00000.json", damages.BATCH_RECORD),
    "ledger": ("extraction/passes/001/0.json", damages.LEDGER),
    "gate": ("extraction/batches/00000.json", damages.GATE),
    "verdict": ("validation/00000.json", damages.VERDICT),
    "rejected": ("validation/rejected/00000.json", damages.RECORD),
    "validated": ("validation/records/00000.json", damages.VERDICT),
    "validation": ("validation/passes/001/001/0.json", damages.RECORD),
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """All records of a run, none damaged."""
    results = tmp_path / "results/test"
    run, paths = RunPaths(results), PassPaths(results / "extraction")
    TARGET.write(run.target)
    BatchIndex({"00000": BatchEntry(0, 1, 10, "f")}, samples=1, tokens=10).write(run.batches)
    Findings(()).write(run.report)
    BatchRecord(**FACTS, batch="00000", fingerprint="f", samples=[SampleName("s", "k")], left_out=[]).write(
        paths.record("00000")
    )
    Ledger(**FACTS, batches={"00000": BatchOutcome("complete", "f", 1, [], [], 0)}).write(
        paths.ledger("001", 0)
    )
    Gate("00000", "f", "l", 1, []).write(run.gate("00000"))
    verdict = BatchVerdict("00000", "f", "e", 1, 10, 99)
    verdict.write(run.verdict("00000"))
    verdict.write(run.rejected("00000"))
    verdict.write(run.validation_record("00000"))
    ValidationLedger("001", "001/0", "e", {"00000": ""}).write(run.validation_ledger("001", "001/0"))
    return results


def plan(results: Path) -> Plan:
    config = load_config({"target": {"path": "t"}, "data": {"sources": [{"path": "d.jsonl"}]}})
    return Plan(config, RunPaths(results))


@pytest.mark.parametrize(
    ("kind", "damage"), [(kind, name) for kind, (_, found) in FILES.items() for name in found]
)
def test_what_is_no_record_is_made_again_and_planning_survives_it(
    results: Path, kind: str, damage: str
) -> None:
    assert plan(results).damaged_records() == []
    path = results / FILES[kind][0]
    FILES[kind][1][damage](path)
    found = plan(results).damaged_records()
    is_seen = damage not in SAME or (kind, damage) == ("ledger", "no batches")
    assert found == ([path] if is_seen else [])


@pytest.mark.parametrize("number", ["x", "", "1e3", "-1", "9" * 5000])
def test_a_pass_number_that_is_none_is_no_record(results: Path, number: str) -> None:
    for name in ("record", "ledger"):
        path = results / FILES[name][0]
        damages.keyed(**{"pass": number})(path)
        assert plan(results).damaged_records() == [path]
        path.unlink()


@pytest.mark.parametrize("kind", FILES)
def test_a_record_that_may_not_be_read_is_not_taken_for_damaged(
    monkeypatch: pytest.MonkeyPatch, results: Path, kind: str
) -> None:
    forbidden = results / FILES[kind][0]

    def open_of_another_user(path: Path) -> BinaryIO:
        if path == forbidden:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_regular(path)

    monkeypatch.setattr(record, "open_regular", open_of_another_user)
    with pytest.raises(StorageError, match="permission denied"):
        plan(results).damaged_records()


@pytest.mark.parametrize("name", ["samples.parquet", "token_frequencies.npy"])
def test_a_sealed_file_that_was_replaced_by_one_of_its_size_is_noticed_before_extraction(
    results: Path, name: str
) -> None:
    run = RunPaths(results)
    (path := run.tokens / name).write_bytes(b"whole")
    sealed = seal_files(run.tokens, [name])
    BatchIndex({"00000": BatchEntry(0, 1, 10, "f")}, samples=1, tokens=10, files=sealed).write(run.batches)
    later = run.batches.stat().st_mtime_ns + 1
    os.utime(path, ns=(later, later))
    assert plan(results).batches() == ["00000"], "touched, and the same"
    path.write_bytes(b"other")
    os.utime(path, ns=(later, later))
    with pytest.raises(InputError, match=f"{name} has changed since it was made; delete it and run"):
        plan(results).batches()
    path.write_bytes(b"long, too")
    with pytest.raises(InputError, match="bytes long instead of 5"):
        plan(results).batches()
