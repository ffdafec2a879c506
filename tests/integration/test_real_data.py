"""Real conversations of two kinds through `extract` on real vLLM."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from integration.fixtures import SHARED_DATA, demo_config
from integration.workflow import Workflow

# 640,000 tokens through real vLLM.
pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(2400)]


@pytest.mark.skipif(not SHARED_DATA.exists(), reason="needs the real conversations in ../shared/data")
def test_a_hundred_agent_conversations_and_five_hundred_sharegpt_ones(
    tmp_path: Path, tiny_llama: Path
) -> None:
    workflow = Workflow(tmp_path, demo_config(tiny_llama))
    workflow.config["data"] = {
        "sources": [
            {"path": str(SHARED_DATA / "tau_bench_airline_100.json"), "name": "airline", "field": "traj"},
            {"path": str(SHARED_DATA / "sharegpt_fastchat_dummy.json"), "name": "sharegpt"},
        ]
    }
    workflow.config["tokenization"] = {"max_length": 16_383, "too_long": "drop", "batch_tokens": 60_000}
    run = workflow.run("extract", timeout=1800)
    assert run.returncode == 0, run.output
    fates = pd.read_parquet(workflow.results / "tokens/ledger.parquet")
    assert (fates["source"].value_counts().to_dict()) == {"sharegpt": 500, "airline": 100}
    assert set(fates.loc[fates["source"] == "airline", "fate"]) == {"kept"}
    assert set(fates.loc[fates["fate"] == "dropped", "reason"]) <= {"duplicate", "empty"}
    batches = json.loads((workflow.results / "tokens/batches.json").read_text())
    kept = int((fates["fate"] == "kept").sum())
    assert kept + sum(batches["dropped"].values()) == 600
    assert kept == batches["samples"] == len(workflow.stored())
    ledger = run.passes["001/0"]
    print(
        f"{kept} samples, {ledger['tokens_extracted']} tokens, {ledger['elapsed_s']:.0f} s, dropped"
        f" {batches['dropped']}"
    )
    assert ledger["samples_extracted"] == kept
    assert workflow.targets() == sorted(workflow.batches())
