"""The canary through real engines: right for full-size architectures, each fault found by its id, and never a
load after it fails."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from canary_faults import (
    dropped_chunk,
    layer_off_by_one,
    post_norm,
    spoil,
    swap_samples,
    swap_states,
    zeroed_tail,
)
from eagle3_data.canary import run as canary
from eagle3_data.canary.checks import check
from eagle3_data.engines.base import EngineSettings
from eagle3_data.validation.head import read_head
from integration.workflow import ROOT, Workflow
from model_configs import DEEPSEEK_V3, KIMI_K2_5, LLAMA_3_1_70B, write_target

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("vllm")]

VLLM = "eagle3_data.engines.vllm.engine:VllmEngine"
SMALL_LLAMA = {
    **LLAMA_3_1_70B,
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 8,
}


def settings_for(target: Path, engine: str, states: Path) -> EngineSettings:
    return EngineSettings(
        engine,
        str(target),
        (2,),
        "bfloat16",
        1,
        512,
        False,
        str(states),
        arguments={"enforce_eager": True} if "vllm" in engine else {},
    )


def run(tmp_path: Path, target: Path, engine: str, *arguments: str) -> tuple[int, dict[str, Any], float]:
    """scripts/run_canary.py as a pass calls it: exit code, its record, seconds."""
    output = tmp_path / "verdict.json"
    settings = json.dumps(asdict(settings_for(target, engine, tmp_path)))
    paths = ("--work", str(tmp_path / "work"), "--log", str(tmp_path / "engine.log"), "--output", str(output))
    started = time.monotonic()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), str(ROOT / "tests/engines")]),
    }
    command = [
        sys.executable,
        str(ROOT / "scripts/run_canary.py"),
        "--settings",
        settings,
        *paths,
        *arguments,
    ]
    code = subprocess.run(command, env=environment, check=False).returncode
    elapsed_s = time.monotonic() - started
    assert not (tmp_path / "work").exists()
    return (
        code,
        json.loads((output if code == 0 else output.with_suffix(".failed.json")).read_text()),
        elapsed_s,
    )


def processor_s() -> float:
    """Seconds of the processor that ended children of this process took, and theirs; not vLLM's worker (25 s
    of a canary's 85), which nobody waits for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def crowded_s() -> float:
    """Seconds since the machine started in which some process had to wait for a core; 0 where the kernel does
    not tell."""
    pressure = Path("/proc/pressure/cpu")
    return int(pressure.read_text().split()[4].removeprefix("total=")) / 1e6 if pressure.exists() else 0.0


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "config"), [("Kimi-K2.5", KIMI_K2_5), ("DeepSeek-V3", DEEPSEEK_V3)])
def test_a_full_size_architecture_passes_on_real_vllm_within_two_minutes(tmp_path, name, config):
    """Two minutes of the processor, and of the clock, but for what others on the same cores make it wait."""
    target = write_target(tmp_path / "target", config)
    processor_before_s, crowded_before_s = processor_s(), crowded_s()
    code, record, elapsed_s = run(tmp_path, target, VLLM)
    used_s, waited_s = processor_s() - processor_before_s, crowded_s() - crowded_before_s
    print(
        f"canary of {name} on the CPU: {elapsed_s:.0f} s, of which the cores were crowded for {waited_s:.0f}"
        f" s; {used_s:.0f} s of the processor"
    )
    assert code == 0, record
    assert [(finding["id"], finding["level"]) for finding in record["findings"]] == [
        ("canary-quantization", "unknown")
    ]
    assert 5 < used_s < 120
    assert elapsed_s - waited_s < 120


@pytest.mark.nightly  # a load of its own
def test_a_target_in_int4_is_proven_in_int4_on_real_vllm(tmp_path):
    quantization = {**KIMI_K2_5["text_config"]["quantization_config"], "ignore": ["lm_head"]}
    modules = (
        *(f"self_attn.{name}_proj" for name in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    )
    names = [f"model.layers.0.{module}.weight_packed" for module in modules]
    code, record, _ = run(
        tmp_path,
        write_target(tmp_path / "target", {**SMALL_LLAMA, "quantization_config": quantization}, names),
        VLLM,
    )
    assert (code, record["findings"]) == (0, [])
    assert "quantization=compressed-tensors" in (tmp_path / "engine.log").read_text()


@pytest.fixture(scope="module")
def extracted(tmp_path_factory):
    """One canary's states, extracted by real vLLM: (settings, answers)."""
    directory = tmp_path_factory.mktemp("canary")
    target = write_target(directory / "target", SMALL_LLAMA)
    kept: list[Any] = []

    def keep(settings, answers, hidden_size):
        shutil.copytree(Path(settings.model_path).parent, directory / "kept")
        kept.append((settings, answers))
        return check(settings, answers, hidden_size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canary, "check", keep)
        assert (
            canary.run_canary(
                settings_for(target, VLLM, directory), directory / "work", directory / "engine.log"
            )
            == []
        )
    settings, answers = kept[0]
    return replace(settings, model_path=str(directory / "kept/model")), answers, directory / "kept/states"


@pytest.mark.nightly  # a load of its own; test_run_canary does so with states of transformers
@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("none", set()),
        ("layer off by one", {"canary-layer"}),
        ("swapped samples", {"canary-wrong-shape", "canary-wrong-token-ids"}),
        ("states swapped under right ids", {"canary-parity", "canary-chunk"}),
        ("zeroed tail", {"canary-all-zero"}),
        ("post-norm states", {"canary-post-norm"}),
        ("dropped chunk", {"canary-chunk"}),
    ],
)
def test_a_fault_in_what_real_vllm_extracts_is_found_by_its_id(extracted, tmp_path, fault, expected):
    settings, answers, states = extracted
    for file in states.iterdir():
        shutil.copy(file, tmp_path)
    answers = [
        replace(
            one, request=replace(one.request, states_path=str(tmp_path / Path(one.request.states_path).name))
        )
        for one in answers
    ]
    if fault == "layer off by one":
        spoil(answers, layer_off_by_one)
    elif fault == "swapped samples":
        swap_samples(answers)
    elif fault == "states swapped under right ids":
        swap_states(answers)
    elif fault == "zeroed tail":
        spoil(answers, zeroed_tail, shortest=10)
    elif fault == "post-norm states":
        spoil(answers, post_norm(read_head(Path(settings.model_path))))
    elif fault == "dropped chunk":
        spoil(answers, dropped_chunk, shortest=128)
    assert {finding.id for finding in check(settings, answers, SMALL_LLAMA["hidden_size"])} == expected


def test_a_faulty_engine_fails_the_script(tmp_path):
    code, record, _ = run(
        tmp_path, write_target(tmp_path / "target", SMALL_LLAMA), "canary_engines:LayerOffByOne"
    )
    assert code == 1 and record["verdict"] == "fail"
    assert {finding["id"] for finding in record["findings"]} == {"canary-layer"}


@pytest.mark.parametrize(
    ("engine", "expected", "deadline_s"),
    [("SilentStart", "canary-engine-start", 3), ("SilentAtLongSamples", "canary-count", 45)],
)
def test_an_engine_that_hangs_is_a_finding_after_the_deadline(tmp_path, engine, expected, deadline_s):
    arguments = ("--deadline-s", str(deadline_s))
    code, record, elapsed_s = run(
        tmp_path, write_target(tmp_path / "target", SMALL_LLAMA), f"canary_engines:{engine}", *arguments
    )
    (finding,) = record["findings"]
    assert (code, finding["id"]) == (1, expected)
    assert f"no answer within {deadline_s} s" in finding["title"]
    assert expected != "canary-count" or "150 tokens" in finding["title"]
    assert elapsed_s < 600, "the engine itself sleeps for days"


@pytest.mark.nightly  # three passes
def test_an_accepted_canary_finding_lets_the_pass_go_on_and_is_in_its_ledger_and_log(
    fast: Workflow, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    fast.config["compatibility"] = {"canary": "inline", "allow": ["canary-layer"]}
    fast.config["extraction"]["engine"] = "canary_engines:LayerOffByOne"
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    ledger = run.passes["001/0"]
    assert ledger["model_loads"] == 1
    assert {(finding["id"], finding["accepted"]) for finding in ledger["canary"]} == {("canary-layer", True)}
    assert "fail (accepted): canary-layer" in fast.log("extract_pass/001/0.log")
    key = next(fast.directory.glob("results/store/*/??/*.safetensors"))
    key.unlink()
    assert fast.run_pass("002")["samples_extracted"] == 1
    log = (fast.directory / "pass.log").read_text()
    assert "canary: passed before" in log and "fail (accepted)" in log
    key.unlink()
    fast.config["compatibility"]["allow"] = []
    refused = fast.run_pass("003")
    assert (refused["model_loads"], refused["samples_extracted"]) == (0, 0)
    assert "canary-layer" in refused["failure"]["causes"][0]


def test_after_a_canary_fails_the_target_is_never_loaded(fast: Workflow, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests"))
    fast.config["compatibility"]["canary"] = "inline"
    fast.config["extraction"]["engine"] = "canary_engines:RefusingWorker"
    done = fast.run("extract")
    assert done.returncode != 0
    ledger = done.passes["001/0"]
    assert (ledger["model_loads"], ledger["samples_extracted"]) == (0, 0)
    failure = ledger["failure"]
    assert failure["class"] == "CompatibilityError"
    assert (
        "canary-engine-start" in failure["causes"][0]
        and "no kernel for head size 192" in failure["causes"][0]
    )
    assert "model loaded in" not in fast.log("extract_pass/001/0.log")
    assert fast.targets() == [] and fast.stored() == {}
