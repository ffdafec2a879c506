"""An engine that stores wrong states of the target, always in the same way: everything else passes, and the
reference ends the run before assembly, by name."""

from __future__ import annotations

import json
import shutil

import pytest

from eagle3_data.validation.reference_verdict import Reference
from integration.workflow import Workflow

pytestmark = pytest.mark.slow


def test_slots_that_the_engine_swaps_are_named_and_never_enter_a_set(fast: Workflow) -> None:
    fast.config["extraction"]["engine"] = "faulty_transformers:FaultyTransformersEngine"
    fast.config["validation"] = {"reference_samples": 2}
    fast.faults = {"capture": [2, 5, 4, 8]}
    run = fast.run("all")
    assert run.returncode != 0
    assert "slots 1 and 2 (layers 4 and 5) are swapped" in run.output
    assert "stored wrong states" in run.output
    told = run.output.rpartition("\nresults/")[2]
    assert told.count("wrong states: sample") == 2, told
    assert "logs: logs/test/prove_target.log" in told
    assert len(list(fast.results.glob("validation/*.json"))) == 5, "nothing else sees it"
    assert not (fast.results / "training_set").exists()
    assert not (fast.results / "reference.json").exists()
    failed = json.loads((fast.results / "reference.failed.json").read_text())
    assert len(failed["engines"][0]["faults"]) == 2, "of both samples"

    fast.faults = {}
    (store,) = fast.directory.glob("results/store/*")
    shutil.move(store, fast.directory / "wrong")
    healed = fast.run("results/test/reference.json")
    assert healed.returncode == 0, healed.output
    assert healed.passes["002/0"]["samples_extracted"] == 10
    assert "proof: reference: 2 samples" in healed.output
    (engine,) = Reference.read(fast.results / "reference.json").engines
    assert min(slot.contrast for slot in engine.slots) > 10
    assert not (fast.results / "reference.failed.json").exists()

    (fast.results / "reference.json").unlink()
    again = fast.run("results/test/reference.json")
    assert again.jobs == ["prove_target"], again.output
    assert "passed before" in fast.log("prove_target.log"), "it is in the store"
