"""The canary of each published shape in `architectures`, through real vLLM on the CPU: what it finds by name.

An architecture that vLLM does not capture states of is refused by the static check, before any engine starts.
"""

from __future__ import annotations

import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from architectures import PUBLISHED
from eagle3_data.canary.run import foresee_canary, run_canary
from eagle3_data.compatibility.source.source_tree import installed_tree
from eagle3_data.compatibility.source.symbols import Symbols
from eagle3_data.compatibility.vllm.models import ModelRegistry, check_architecture
from eagle3_data.engines.base import EngineSettings
from model_configs import write_target

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800), pytest.mark.xdist_group("vllm")]


REFUSED = {
    "Command-R", "Command-R7B", "EXAONE-4-32B", "Gemma-2-9B", "Gemma-3-4B", "Gemma-3-4B-text",
    "GLM-4.5-Air", "LFM2-1.2B", "Mixtral-8x7B", "Nemotron-4-Mini", "StableLM-2-1.6B",
}  # fmt: skip
"""vLLM 0.32 has no SupportsEagle3 for their classes."""
UNREGISTERED = {"Bamba-9B"}
"""vLLM dropped their classes; it tries its Transformers backend."""
NO_KERNEL = {
    "MiniMax-M2": "canary-extraction",
    "Nemotron-H-8B": "canary-extraction",
    "Qwen3-Next-80B": "canary-extraction",
}
"""They need kernels that vLLM's build for CPUs does not have."""
NO_START = {
    "Bamba-9B": "does not dispatch through the Transformers attention interface",
    # vLLM turns prefix caching off for MLA on CPUs, after it has set what needs it
    "Kimi-Linear-48B": "--mamba-block-size can only be set with --enable-prefix-caching",
}
"""vLLM refuses them with these words."""
NEED_TORCHVISION = {
    "Gemma-4-E2B", "LLaVA-1.5-7B",
    "Qwen2.5-VL-7B-flat", "Qwen2.5-VL-7B-nested", "Qwen3-VL-8B", "Qwen3.5-4B", "Qwen3.5-4B-text",
}  # fmt: skip
"""vLLM's modules for them import it; the pinned CPU environment does not have it."""
UNKNOWN = {
    "DeepSeek-V3": {"canary-quantization"},
    "Kimi-K2.5": {"canary-quantization"},  # no names of weights here to quantize by
    "Gemma-4-E2B-text": {"canary-parity"},  # its bfloat16 differs from float32 as much
}


@cache
def registry() -> ModelRegistry:
    tree = installed_tree("vllm")
    assert tree is not None
    return ModelRegistry(Symbols(tree))


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_canary_of_a_published_architecture(name: str, tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", PUBLISHED[name])
    _, refusals = check_architecture(registry(), PUBLISHED[name]["architectures"][0])
    expected = {"not-eagle3"} if name in REFUSED else set()
    if name in UNREGISTERED:
        expected = {"architecture-unregistered"}
    assert {finding.id for finding in refusals} == expected
    if name in REFUSED:
        return
    states = tmp_path / "states"
    states.mkdir()
    engine = "eagle3_data.engines.vllm.engine:VllmEngine"
    arguments = {"enforce_eager": True}
    settings = EngineSettings(
        engine, str(target), (2,), "bfloat16", 1, 512, False, str(states), arguments=arguments
    )
    findings = run_canary(settings, tmp_path / "work", tmp_path / "engine.log")
    shutil.rmtree(tmp_path / "work", ignore_errors=True)
    if name in NO_KERNEL:
        (finding,) = [one for one in findings if one.level == "fail"]
        assert finding.id == NO_KERNEL[name] and finding.title.startswith("this machine lacks a kernel")
        return
    if name in NEED_TORCHVISION and find_spec("torchvision") is None:
        (finding,) = [one for one in findings if one.level == "fail"]
        assert finding.id == "canary-engine-start" and "torchvision" in finding.title + finding.remedy
        return
    if name in NO_START:
        (finding,) = [one for one in findings if one.level == "fail"]
        assert finding.id == "canary-engine-start" and NO_START[name] in finding.title
        return
    assert {one.id for one in findings if one.level == "fail"} == set(), findings
    assert {one.id for one in findings if one.level == "unknown"} == UNKNOWN.get(name, set())


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_the_canary_cannot_tell_is_foreseen(name: str, tmp_path: Path) -> None:
    """Without weights, the head cannot be read; else only what no canary covers is left open."""
    target = write_target(tmp_path / "target", PUBLISHED[name])
    (target / "model.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    found = {finding.id: finding for finding in foresee_canary(target, 1, False)}
    assert "holds no weights for" in found.pop("greedy-token-unknown").title
    assert set(found) == ({"canary-quantization"} if name == "DeepSeek-V3" else set())
