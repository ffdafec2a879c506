"""Targets and finished runs, each made once a session: building a demo target and loading vLLM cost half a
minute each."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

from integration.workflow import FAKE_ENGINE, ROOT, Workflow, conversation, write_jsonl

SHARED_DATA = ROOT.parent / "shared" / "data"


def build_target(name: str, directory: Path, seed: int = 0) -> Path:
    conversations = ROOT / "config/demo/conversations.jsonl"
    arguments = [
        "--target",
        name,
        "--conversations",
        str(conversations),
        "--output",
        str(directory),
        "--seed",
        str(seed),
    ]
    subprocess.run([sys.executable, str(ROOT / "scripts/build_demo_target.py"), *arguments], check=True)
    return directory


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A directory that one of pytest's workers makes and all of them use."""
    base = factory.getbasetemp()
    directory = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    with FileLock(f"{directory}.lock"):
        done = directory.with_suffix(".done")
        if not done.exists():
            shutil.rmtree(directory, ignore_errors=True)
            make(directory)
            done.touch()
    return directory


def demo_target(factory: pytest.TempPathFactory, name: str) -> Path:
    return made_once(factory, name, lambda directory: build_target(name, directory))


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return demo_target(tmp_path_factory, "tiny-llama")


@pytest.fixture(scope="session")
def tokenized_template(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Workflow:
    """Ten short conversations in five batches, tokenized and found compatible, for the fake engine."""

    def make(directory: Path) -> None:
        workflow = Workflow(directory, fast_config(tiny_llama))
        write_jsonl(directory / "data.jsonl", [conversation(number) for number in range(100, 110)])
        run = workflow.run("results/test/compatibility/report.json", "results/test/tokens/samples.html")
        assert run.returncode == 0, run.output

    return Workflow(made_once(tmp_path_factory, "tokenized", make), fast_config(tiny_llama))


@pytest.fixture(scope="session")
def finished_template(tmp_path_factory: pytest.TempPathFactory, tokenized_template: Workflow) -> Workflow:
    def make(directory: Path) -> None:
        workflow = tokenized_template.copy(directory)
        run = workflow.run("extract")
        assert run.returncode == 0, run.output
        assert list(run.passes) == ["001/0"]
        assert workflow.targets() == sorted(workflow.batches())

    directory = made_once(tmp_path_factory, "finished", make)
    return Workflow(directory, copy.deepcopy(tokenized_template.config))


@pytest.fixture
def fast(tmp_path: Path, tokenized_template: Workflow) -> Iterator[Workflow]:
    """A tokenized run that has yet to be extracted: for what Snakemake and the supervisor do."""
    workflow = tokenized_template.copy(tmp_path / "run")
    yield workflow
    workflow.end()


@pytest.fixture
def finished(tmp_path: Path, finished_template: Workflow) -> Workflow:
    """A run that is extracted."""
    return finished_template.copy(tmp_path / "run")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB for the store."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fast_config(target: Path) -> dict[str, Any]:
    return {
        "target": {"path": str(target)},
        "data": {"sources": [{"path": "data.jsonl"}]},
        "tokenization": {"max_length": 512, "batch_tokens": 110},
        "extraction": {"engine": FAKE_ENGINE, "in_flight_tokens": 512, "write_timeout_s": 20},
        "compatibility": {"canary": "off"},
        "validation": {"reference_samples": 0},
    }


def demo_config(target: Path, **extraction: Any) -> dict[str, Any]:
    """config/config.yaml with paths that hold in any working directory."""
    config = yaml.safe_load((ROOT / "config/config.yaml").read_text())
    config["target"]["path"] = str(target)
    config["data"]["sources"][0]["path"] = str(ROOT / "config/demo/conversations.jsonl")
    config["extraction"].update(extraction)
    return config


@pytest.fixture(scope="session")
def demo_run(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Workflow:
    """The demo as shipped, in bfloat16, from the canary to the assembled training set."""
    workflow = Workflow(tmp_path_factory.mktemp("demo") / "run", demo_config(tiny_llama))
    run = workflow.run("all", timeout=1500)
    assert run.returncode == 0, run.output
    assert run.passes["001/0"]["model_loads"] == 1
    return workflow
