"""A file that was lost or damaged is made again, or the run fails and says why: never a run that ends well
with less than it was asked for."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from integration.workflow import Run, Workflow

pytestmark = pytest.mark.slow

BEFORE_EXTRACTION = [
    "target.json",
    "tokens/samples.parquet",
    "tokens/batches.json",
    "tokens/ledger.parquet",
    "tokens/token_frequencies.npy",
    "tokens/samples.html",
    "compatibility/report.json",
    "compatibility/report.html",
]


def planned(run: Run) -> set[str]:
    """The rules that a dry run would run."""
    assert run.returncode == 0, run.output
    return set(re.findall(r"^(?:local)?(?:rule|checkpoint) (\w+):", run.output, re.MULTILINE))


def empty(path: Path) -> None:
    """As a disk that was full leaves it: its time unchanged, so that only its content tells."""
    times = path.stat()
    path.write_text("{}")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_each_file_that_is_lost_before_extraction_is_planned_again(finished: Workflow) -> None:
    assert finished.run("extract").returncode == 0  # the page for people, too
    for name in BEFORE_EXTRACTION:
        path = finished.results / name
        path.rename(finished.directory / "lost")
        jobs = planned(finished.run("--dry-run", "extract"))
        maker = {"target": "describe_target", "samples.html": "show_samples"}.get(
            path.stem if path.parent == finished.results else path.name,
            "tokenize_dataset" if path.parent.name == "tokens" else "check_compatibility",
        )
        assert maker in jobs, name
        assert "extract_pass" not in jobs, name
        assert ("tokenize_dataset" in jobs) == (maker in ("tokenize_dataset", "describe_target")), name
        (finished.directory / "lost").rename(path)
    assert finished.run("--dry-run", "extract").nothing_done


def test_what_was_lost_or_emptied_between_the_stages_is_made_again_and_still_proven(fast: Workflow) -> None:
    for name in BEFORE_EXTRACTION[1:6]:
        (fast.results / name).unlink(missing_ok=True)
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert len(fast.targets()) == 5 and len(fast.stored()) == 10
    assert all((fast.results / name).exists() for name in BEFORE_EXTRACTION)

    (fast.results / "tokens/samples.html").unlink()
    (fast.results / "tokens/samples.parquet").unlink()
    key = fast.stored_states()[0].stem
    states = fast.stored_states()[0].read_bytes()
    fast.stored_states()[0].write_bytes(states[:-9] + bytes([states[-9] ^ 1]) + states[-8:])
    rejected = fast.run("all")
    assert rejected.returncode != 0
    assert f"({key}): checksum" in rejected.output
    assert not (fast.results / "training_set").exists()

    for name in ("target.json", "tokens/batches.json", "extraction/batches/00001.json"):
        empty(fast.results / name)
    empty(next(fast.results.glob("validation/0*.json")))
    dry = fast.run("--dry-run", "all")
    assert dry.returncode != 0
    assert "results/test/target.json" in dry.output and "without --dry-run makes them again" in dry.output
    healed = fast.run("all")
    assert healed.returncode == 0, healed.output
    assert healed.output.count("is damaged; it is made again") == 4
    assert sum(ledger["samples_extracted"] for ledger in healed.passes.values()) == 1
    assert len(list(fast.results.glob("validation/0*.json"))) == 5
    assert json.loads((fast.results / "training_set/provenance.json").read_text())["rows"] == 10
    assert fast.run("all").nothing_done


def test_a_batch_that_is_not_in_the_plan_is_explained(finished: Workflow) -> None:
    run = finished.run("results/test/extraction/batches/00099.json")
    assert run.returncode != 0
    assert "there is no batch 00099; the batches are 00000 to 00004" in run.output
