"""A model whose weights are read layer by layer computes what transformers computes with all of them, in the
memory of one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantized
from eagle3_data.engines.language_model import language_model_without_weights
from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.errors import InputError
from eagle3_data.validation.streaming import StreamedModel
from eagle3_data.validation.tensors import sources_in_model
from model_configs import KIMI_K2_5, write_target
from tiny_models import LAYERS, VOCABULARY, tiny_model
from unit.test_head import OTHERS, rename, written

IDS = torch.randint(3, VOCABULARY, (2, 40), generator=torch.Generator().manual_seed(0))
USUAL = [
    "BloomForCausalLM",  # no prefix in its checkpoints; ALiBi
    "DeepseekV3ForCausalLM",  # MLA, experts that are stacked
    "Gemma2ForCausalLM",  # scaled embeddings, windows
    "GptOssForCausalLM",  # experts that are stored as one
    "Llama4ForCausalLM",  # asks for the embedding's device
    "NemotronHForCausalLM",  # Mamba
    "PhiForCausalLM",  # attention beside the MLP
    "Qwen3_5MoeForCausalLM",  # linear attention, experts
]


def streamed(directory: Path) -> dict[int, torch.Tensor]:
    """States [2, T, H] of IDS by layer."""
    model, found = StreamedModel(directory), {}

    def visit(k: int, states: torch.Tensor) -> torch.Tensor:
        found[k] = states.clone()
        return states

    model.run(IDS, visit)
    held = [one for one in model.model.parameters() if one.numel() > 1 and set(one.stride()) != {0}]
    assert not held, "weights are dropped"
    return found


def check_equal(directory: Path, plain: Path) -> None:
    """The second sample is shorter: what follows it must not be seen."""
    found, whole = streamed(directory), ReferenceModel(str(plain), torch.float32)
    assert sorted(found) == list(range(LAYERS + 2))
    for row, length in ((0, 40), (1, 23)):
        theirs, _ = whole.states(IDS[row, :length].tolist(), range(LAYERS + 1))
        for k in range(LAYERS + 1):
            torch.testing.assert_close(found[k][row, :length], theirs[:, k], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "architecture",
    [*USUAL, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS if name not in USUAL)],
)
def test_every_layer_is_that_of_the_whole_model(architecture: str, tmp_path: Path) -> None:
    check_equal(written(tiny_model(architecture), tmp_path), tmp_path)


@pytest.mark.parametrize(
    ("how", "config"),
    [
        (quantized.int4, quantized.INT4),
        (quantized.fp8_blocks, quantized.FP8),
        (quantized.fp8_per_tensor, quantized.FP8_PER_TENSOR),
    ],
)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "DeepseekV3ForCausalLM"])
def test_quantized_weights_are_the_values_they_stand_for(
    architecture: str,
    how: Callable[[torch.Tensor], quantized.Stored],
    config: dict[str, Any],
    tmp_path: Path,
) -> None:
    plain = written(tiny_model(architecture), tmp_path / "plain")
    target = shutil.copytree(plain, tmp_path / "quantized")
    described = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**described, "quantization_config": config}))
    files = [directory / "model.safetensors" for directory in (plain, plain, target)]
    quantized.quantize(*files, how)
    stored = load_file(target / "model.safetensors")
    expected = {"LlamaForCausalLM": 7, "DeepseekV3ForCausalLM": 25}[architecture] * LAYERS
    assert sum("scale" in name for name in stored) >= expected
    check_equal(target, plain)


def test_a_wrapper_that_transformers_does_not_know(tmp_path: Path) -> None:
    plain = written(tiny_model("LlamaForCausalLM"), tmp_path / "plain")
    target = shutil.copytree(plain, tmp_path / "wrapped")
    rename(target, lambda name: f"language_model.{name}")
    inner = json.loads((plain / "config.json").read_text())
    outer = {"architectures": ["UnknownForConditionalGeneration"], "model_type": "unknown"}
    (target / "config.json").write_text(json.dumps({**outer, "text_config": inner}))
    check_equal(target, plain)


def test_another_path_to_the_language_model(tmp_path: Path) -> None:
    plain = written(tiny_model("LlamaForCausalLM"), tmp_path / "plain")
    target = shutil.copytree(plain, tmp_path / "renamed")
    rename(target, lambda name: name.replace("model.", "model.language_model.", 1))
    check_equal(target, plain)


def change(directory: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


UNKNOWN: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "a weight is absent": (
        lambda tensors: tensors.pop("model.layers.2.mlp.up_proj.weight"),
        r"no weights for model\.layers\.2\.mlp\.up_proj\.weight",
    ),
    "a weight of another shape": (
        lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.ones(64, 64)}),
        r"model\.layers\.2\.mlp\.up_proj\.weight is \[64, 64\]",
    ),
    "a weight that the architecture does not have": (
        lambda tensors: tensors.update({"model.layers.1.mlp.up_proj.bias": torch.ones(128)}),
        r"has nothing for model\.layers\.1\.mlp\.up_proj\.bias",
    ),
    "quantized otherwise": (
        lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.ones(128, 64).char()}),
        "quantized in a way that is not understood",
    ),
    "no embedding": (
        lambda tensors: tensors.pop("model.embed_tokens.weight"),
        r"no weights for model\.embed_tokens\.weight",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_understood_is_said(case: str, tmp_path: Path) -> None:
    edit, message = UNKNOWN[case]
    change(written(tiny_model("LlamaForCausalLM"), tmp_path), edit)
    with pytest.raises(InputError, match=message):
        streamed(tmp_path)


def test_layers_beyond_the_last_and_computed_buffers_are_not_weights_of_it(tmp_path: Path) -> None:
    written(tiny_model("LlamaForCausalLM"), tmp_path)
    more = {
        f"model.layers.{LAYERS}.mlp.up_proj.weight": torch.ones(128, 64),
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8),
        "vision_tower.encoder.layers.0.fc1.weight": torch.ones(8),
    }
    change(tmp_path, lambda tensors: tensors.update(more))
    streamed(tmp_path)


def test_an_architecture_that_transformers_does_not_know_is_said(tmp_path: Path) -> None:
    written(
        tiny_model("LlamaForCausalLM"), tmp_path, architectures=["NoSuchForCausalLM"], model_type="nosuch"
    )
    with pytest.raises(InputError, match="nosuch"):
        StreamedModel(tmp_path)


def test_every_weight_of_kimi_k2_5_has_its_place(tmp_path: Path) -> None:
    """By the names of the real checkpoint, of a dense layer and one with experts."""
    model = language_model_without_weights(write_target(tmp_path / "target", KIMI_K2_5, ()), False)
    names = {
        f"language_model.model.layers.{layer}.{part}"
        for layer in (0, 60)
        for part in model.model.layers[layer].state_dict()
        if "mlp.experts" not in part
    }
    names |= {
        f"language_model.model.layers.60.mlp.experts.{expert}.{name}_proj.weight_{part}"
        for expert in range(384)
        for name in ("gate", "up", "down")
        for part in ("packed", "scale", "shape")
    }
    found = sources_in_model(names, model, wrapped=True)
    wanted = {name for name in model.state_dict() if name.startswith(("model.layers.0.", "model.layers.60."))}
    assert set(found) == wanted
    stacked = [name for _, name in found["model.layers.60.mlp.experts.down_proj"].tensors]
    assert [int(name.split(".")[6]) for name in stacked] == list(range(384)), "in the order of experts"


@pytest.mark.parametrize(
    ("architecture", "sizes", "packed"),
    [
        (
            "LlamaForCausalLM",
            {"intermediate_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 8, "head_dim": 64},
            False,
        ),
        pytest.param(
            "Qwen3MoeForCausalLM",
            {"moe_intermediate_size": 256, "num_experts": 64, "num_local_experts": 64},
            True,
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_never_more_than_two_layers_are_in_memory(
    architecture: str, sizes: dict[str, int], packed: bool, tmp_path: Path
) -> None:
    model = tiny_model(architecture, hidden_size=512, **sizes).bfloat16()
    layers = model.model.layers
    layer_bytes = 4 * sum(one.numel() for one in layers[0].parameters())
    assert layer_bytes > 10e6
    weights = written(model, tmp_path) / "model.safetensors"
    del model
    if packed:
        quantized.quantize(weights, tmp_path / "values", weights, quantized.int4)
    child = [sys.executable, __file__, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    measured = subprocess.run(child, env=environment, capture_output=True, text=True, check=True)
    peak_bytes, states_bytes = int(measured.stdout), 20 * 4 * IDS.numel() * 512
    print(f"peak {peak_bytes / 1e6:.0f} MB; a layer is {layer_bytes / 1e6:.0f} MB, there are {len(layers)}")
    assert peak_bytes < 2 * layer_bytes + states_bytes


def measure(directory: Path) -> int:
    """Bytes by which the memory of this process grows at most, without pages of files."""
    import threading

    import compressed_tensors.compressors  # noqa: F401  once, and no part of a layer

    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

    torch.set_num_threads(2)
    model = StreamedModel(directory)
    (torch.ones(64, 64) @ torch.ones(64, 64)).sum()  # what torch's threads take once
    before, peak, end = now(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not end.wait(0.001):
            peak = max(peak, now() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    model.run(IDS, lambda _, states: states)
    end.set()
    watcher.join()
    return peak


if __name__ == "__main__":
    print(measure(Path(sys.argv[1])))
