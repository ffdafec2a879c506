"""A target that is replaced, with files older than its description: states of two checkpoints never meet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_data.records import write_json
from integration.workflow import Workflow

pytestmark = pytest.mark.slow


def other_checkpoint(target: Path, directory: Path) -> Path:
    """The same model with one weight changed, and files as old as the other's."""
    shutil.copytree(target, directory)
    weights = directory / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    for path in directory.iterdir():
        os.utime(path, (1000, 1000))
    return directory


def test_a_link_that_leads_to_another_checkpoint_extracts_all_again(
    finished: Workflow, tmp_path: Path
) -> None:
    first = Path(finished.config["target"]["path"])
    link = tmp_path / "link"
    link.symlink_to(first)
    finished.config["target"]["path"] = str(link)
    run = finished.run("extract")
    assert run.returncode == 0, run.output
    assert run.passes == {}, "the same checkpoint by another path"
    link.unlink()
    link.symlink_to(other_checkpoint(first, tmp_path / "other"))
    run = finished.run("extract")
    assert run.returncode == 0, run.output
    assert "describe_target" in run.jobs
    (ledger,) = run.passes.values()
    assert ledger["samples_extracted"] == 10
    assert ledger["target_resolved"] == str(tmp_path / "other")
    assert finished.run("extract").nothing_done


def test_neither_pass_nor_validation_reads_a_target_that_is_not_the_described_one(
    fast: Workflow, tmp_path: Path
) -> None:
    first = Path(fast.config["target"]["path"])
    record = json.loads((fast.results / "target.json").read_text())
    record["path"] = str(other_checkpoint(first, tmp_path / "other"))
    (fast.results / "target.json").write_text(json.dumps(record))
    ledger = fast.run_pass()
    assert ledger["model_loads"] == 0
    assert (
        "no longer holds the checkpoint that results/test/target.json describes"
        in ledger["failure"]["message"]
    )
    assert "delete results/test/target.json" in ledger["failure"]["message"]
    batches = {
        "00000": {
            "state": "complete",
            "fingerprint": json.loads(fast.ledger("001").read_text())["batches"]["00000"]["fingerprint"],
            "samples": 2,
            "left_out": [],
            "failed": [],
            "not_reached": 0,
        }
    }
    facts = {"pass": "001", "stripe": 0, "extraction_id": "e"}
    write_json(fast.ledger("001"), {**json.loads(fast.ledger("001").read_text()), "batches": batches})
    made = {"batch": "00000", "fingerprint": "f", "samples": [], "left_out": []}
    write_json(fast.results / "extraction/records/00000.json", {**facts, **made})
    script = [sys.executable, str(fast.root / "scripts/validate_pass.py"), "--config", "config.yaml"]
    ledger_path = "results/test/validation/passes/001/001/0.json"
    done = subprocess.run(
        [*script, "--results", "results/test", "--extracted", "001/0", "--ledger", ledger_path],
        cwd=fast.directory,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no longer holds the checkpoint" in done.stderr and "Traceback" not in done.stderr
    assert not (fast.directory / ledger_path).exists()
