"""This workflow beside others: called from elsewhere, as a module of an outer workflow, with large and odd
configurations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integration.workflow import ROOT, Workflow, conversation, write_jsonl

pytestmark = pytest.mark.slow

OUTER = """
import json

CONFIGS = json.load(open("configs.json"))

module one:
    snakefile: {snakefile!r}
    config: CONFIGS["one"]

use rule * from one as one_*

module two:
    snakefile: {snakefile!r}
    config: CONFIGS["two"]

use rule * from two as two_*

rule both:
    default_target: True
    input:
        rules.one_extract.input,
        rules.two_extract.input,
"""


def snakemake(directory: Path, *arguments: str, workflow: Workflow | None = None) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "2", *arguments],
        cwd=directory,
        env=workflow.environment() if workflow else os.environ,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=800,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_an_outer_workflow_uses_it_with_two_configurations(fast: Workflow) -> None:
    outer = fast.directory / "outer"
    outer.mkdir()
    (fast.directory / "data.jsonl").rename(outer / "data.jsonl")
    lengths = {"one": 512, "two": 36}
    configs = {
        run: {**fast.config, "run": run, "tokenization": {"max_length": length}}
        for run, length in lengths.items()
    }
    (outer / "configs.json").write_text(json.dumps(configs))
    (outer / "Snakefile").write_text(OUTER.format(snakefile=str(ROOT / "Snakefile")))
    fast.set_faults({})
    code, output = snakemake(outer, workflow=fast)
    assert code == 0, output
    for run, length in lengths.items():
        index = json.loads((outer / f"results/{run}/tokens/batches.json").read_text())
        assert index["longest"] <= length
        gates = (outer / f"results/{run}/extraction/batches").glob("*.json")
        assert sorted(path.stem for path in gates) == sorted(index["batches"])
    assert "Nothing to be done" in snakemake(outer, workflow=fast)[1]


def test_the_demo_is_planned_from_any_directory(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    code, output = snakemake(
        tmp_path, "-s", str(ROOT / "Snakefile"), "--directory", str(tmp_path / "work"), "--dry-run"
    )
    assert code == 0, output
    assert f"input: {ROOT}/config/demo/conversations.jsonl" in output


def test_containers_are_refused_in_words(fast: Workflow) -> None:
    run = fast.run("--sdm", "apptainer", "--dry-run")
    assert run.returncode != 0
    assert "this workflow names no container images" in run.output


def test_a_thousand_sources_with_odd_names_and_values_are_tokenized(fast: Workflow) -> None:
    folder = fast.directory / "rows {batch} 😀"
    folder.mkdir()
    paths = [folder / f"set-{number:04d}.jsonl" for number in range(1000)]
    for number, path in enumerate(paths):
        write_jsonl(path, [conversation(number)])
    fast.config["data"]["sources"] = [{"path": str(path)} for path in paths]
    fast.config["tokenization"]["template_arguments"] = {"x": "{batch} {nonsense} 😀", "y": 1e16}
    fast.config["extraction"]["engine_arguments"] = {"hf_overrides": {"eps": 1e-5, "text": "{wild}"}}
    run = fast.run("results/test/tokens/batches.json")
    assert run.returncode == 0, run.output
    assert json.loads((fast.results / "tokens/batches.json").read_text())["samples"] == 1000
    write_jsonl(paths[7], [conversation(5000)])
    assert "tokenize_dataset" in fast.run("results/test/tokens/batches.json").jobs
