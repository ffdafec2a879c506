"""Targets and finished runs, each made once a session: building a demo target and loading vLLM cost half a minute each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from integration.workflow import FAKE_ENGINE, ROOT, Workflow, conversation, write_jsonl

SHARED_DATA = ROOT.parent / "shared" / "data"


def build_target(name: str, directory: Path, seed: int = 0) -> Path:
    conversations = ROOT / "config/demo/conversations.jsonl"
    arguments = ["--target", name, "--conversations", str(conversations), "--output", str(directory), "--seed", str(seed)]
    subprocess.run([sys.executable, str(ROOT / "scripts/build_demo_target.py"), *arguments], check=True)
    return directory


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_target("tiny-llama", tmp_path_factory.mktemp("targets") / "tiny-llama")


@pytest.fixture
def fast(tmp_path: Path, tiny_llama: Path) -> Workflow:
    """Ten short conversations in five batches through the fake engine: for what Snakemake and the supervisor do."""
    write_jsonl(tmp_path / "data.jsonl", [conversation(number) for number in range(100, 110)])
    return Workflow(tmp_path, fast_config(tiny_llama))


def fast_config(target: Path) -> dict[str, Any]:
    return {
        "target": {"path": str(target)},
        "data": {"sources": [{"path": "data.jsonl"}]},
        "tokenization": {"max_length": 512, "batch_tokens": 110},
        "extraction": {"engine": FAKE_ENGINE, "in_flight_tokens": 512, "write_timeout_s": 20},
        "compatibility": {"canary": "off"},
    }
