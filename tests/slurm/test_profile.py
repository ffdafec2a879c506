"""What profiles/slurm asks of SLURM for each rule, as Snakemake itself resolves it. A dry run: no daemon is
needed."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_data.passes.forecast import SHORTEST_MIN, SUPERVISOR_MB, WORKER_MB
from integration.workflow import ROOT, Run, Workflow
from model_configs import KIMI_K2_5, KIMI_PACKED, write_target
from slurm.workflow import SlurmWorkflow

pytestmark = pytest.mark.slow

KIMI_K2_5_BYTES = 595_000_000_000
"""Of the published INT4 checkpoint, rounded."""


def write_sparse_weights(path: Path, names: Iterable[str], size_bytes: int) -> None:
    """A safetensors file of that size that takes no room: the first tensor has all the data, which is a
    hole."""
    header_bytes = 1 << 20
    data_bytes = size_bytes - 8 - header_bytes
    first, *others = names
    empty = {"dtype": "U8", "shape": [0], "data_offsets": [data_bytes, data_bytes]}
    header: dict[str, Any] = {first: {"dtype": "U8", "shape": [data_bytes], "data_offsets": [0, data_bytes]}}
    header |= dict.fromkeys(others, empty)
    with open(path, "wb") as weights:
        weights.write(header_bytes.to_bytes(8, "little") + json.dumps(header).encode().ljust(header_bytes))
        weights.truncate(size_bytes)


@pytest.fixture
def planned(tmp_path: Path, tokenized_template: Workflow) -> SlurmWorkflow:
    copied = tokenized_template.copy(tmp_path / "run")
    copied.config["extraction"]["engine"] = "eagle3_data.engines.vllm.engine:VllmEngine"
    return SlurmWorkflow(copied.directory, copied.config)


def resources_of(run: Run, rule: str) -> dict[str, str]:
    """The effective resources of the first job of `rule` in a dry run."""
    assert run.returncode == 0, run.output
    found = re.search(rf"rule {rule}:\n(?:    .*\n)*?    resources: (.*)", run.output)
    assert found, run.output
    return dict(item.split("=", 1) for item in found[1].split(", "))


def test_the_pass_is_one_job_of_eight_devices_on_one_node(planned: SlurmWorkflow) -> None:
    planned.config["extraction"]["tensor_parallel"] = 8
    dry = planned.run("--dry-run", "extract")
    asked = resources_of(dry, "extract_pass")
    expected = {
        "gpu": "8",
        "nodes": "1",
        "runtime": str(SHORTEST_MIN + 2),
        "mem_mb": str(SUPERVISOR_MB + 8 * WORKER_MB + 5),
        "slurm_partition": "main",
    }
    assert {name: asked[name] for name in expected} == expected
    assert dry.output.count("rule extract_pass:") == 1


def test_walltime_and_memory_follow_from_the_checkpoint_and_what_is_in_flight(planned: SlurmWorkflow) -> None:
    target = planned.results / "target.json"
    planned.config["extraction"]["in_flight_tokens"] = 1_000_000
    written = target.stat()
    target.write_text(json.dumps({**json.loads(target.read_text()), "weights_bytes": 540_000_000_000}))
    os.utime(target, ns=(written.st_atime_ns, written.st_mtime_ns))
    asked = resources_of(planned.run("--dry-run", "extract"), "extract_pass")
    assert (asked["runtime"], asked["mem_mb"]) == ("90", str(SUPERVISOR_MB + WORKER_MB + 8_192))


def test_the_profile_may_set_the_walltime(planned: SlurmWorkflow) -> None:
    profile = planned.copy_project() / "profiles/slurm/config.yaml"
    assert "    # runtime: 720 " in profile.read_text()
    profile.write_text(profile.read_text().replace("    # runtime: 720 ", "    runtime: 720 "))
    assert resources_of(planned.run("--dry-run", "extract"), "extract_pass")["runtime"] == "720"


def test_small_jobs_ask_for_no_device(planned: SlurmWorkflow) -> None:
    asked = resources_of(planned.run("--dry-run", "validate"), "validate_pass")
    assert "gpu" not in asked
    assert (asked["runtime"], asked["mem_mb"], asked["slurm_partition"]) == ("480", "16000", "main")


def test_resources_on_the_command_line_replace_those_of_the_profile(planned: SlurmWorkflow) -> None:
    planned.resources = ("gpu=4",)
    asked = resources_of(planned.run("--dry-run", "extract"), "extract_pass")
    assert (asked["gpu"], asked["nodes"], asked["runtime"]) == ("4", "1", str(SHORTEST_MIN + 2))
    assert resources_of(planned.run("--dry-run", "validate"), "validate_pass")["mem_mb"] == "8000"


def test_the_config_for_kimi_k2_5_plans_one_job_of_eight_devices_as_soon_as_its_paths_are_filled_in(
    tmp_path: Path, tiny_llama: Path
) -> None:
    """The full-size config.json, and weight files of the full size without content. The real tokenizer needs
    a network: the demo's stands in."""
    target = write_target(tmp_path / "Kimi-K2.5", KIMI_K2_5, KIMI_PACKED)
    for file in (*tiny_llama.glob("tokenizer*"), *tiny_llama.glob("chat_template*")):
        shutil.copy(file, target)
    write_sparse_weights(target / "model-00001-of-00064.safetensors", KIMI_PACKED, KIMI_K2_5_BYTES)
    text = (ROOT / "config/kimi-k2.5.yaml").read_text()
    filled_in = text.replace("/path/to/Kimi-K2.5", str(target)).replace(
        "/path/to/conversations.jsonl", str(ROOT / "config/demo/conversations.jsonl")
    )
    assert "/path/to" not in filled_in
    workflow = SlurmWorkflow(tmp_path / "run", yaml.safe_load(filled_in))
    local = Workflow(workflow.directory, workflow.config)
    checked = local.run("results/kimi-k2.5/compatibility/report.json")
    assert checked.returncode == 0, checked.output
    report = json.loads((workflow.results / "compatibility/report.json").read_text())
    assert not [finding for finding in report["findings"] if finding["level"] == "fail"]
    ids = {finding["id"] for finding in report["findings"]}
    assert "greedy-token-unknown" in ids, "the stand-in's files hold no final norm"
    assert "eos-disagrees" in ids, "and its tokenizer is another model's"
    assert report["subject"]["states"].startswith("57.4 kB a token")
    asked = resources_of(workflow.run("--dry-run", "extract"), "extract_pass")
    assert {name: asked[name] for name in ("gpu", "nodes", "slurm_partition")} == {
        "gpu": "8",
        "nodes": "1",
        "slurm_partition": "main",
    }
    assert asked["mem_mb"] == "142065"
    assert 60 < int(asked["runtime"]) < 120
    local.config["compatibility"]["device_memory_gib"] = 40
    refused = local.run("results/kimi-k2.5/compatibility/report.json")
    assert refused.returncode != 0
    assert "device-memory-short" in local.log("check_compatibility.log")
