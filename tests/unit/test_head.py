"""The greedy proof computes the end of any architecture as transformers does, or says why it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.errors import InputError
from eagle3_data.validation.head import Head, read_head
from tiny_models import LAYERS, VOCABULARY, tiny_model

PROMPTS = [
    torch.randint(3, VOCABULARY, (7,), generator=torch.Generator().manual_seed(n)).tolist() for n in range(8)
]
"""As many that a wrong norm cannot agree on all of them by chance."""

USUAL = [
    "BambaForCausalLM",  # its layers give tuples
    "Cohere2ForCausalLM",  # LayerNorm, tied and scaled by the class's defaults
    "Gemma2ForCausalLM",  # 1 + w, capped logits, tied by the class's default
    "GPTNeoXForCausalLM",  # other names
    "Lfm2ForCausalLM",  # the final norm is called embedding_norm
    "NemotronForCausalLM",  # LayerNorm, 1 + w
    "PhiForCausalLM",  # bias in the head
]
OTHERS = [
    "AfmoeForCausalLM",
    "ApertusForCausalLM",
    "ArceeForCausalLM",
    "BloomForCausalLM",
    "CohereForCausalLM",
    "Cohere2MoeForCausalLM",
    "CwmForCausalLM",
    "DeepseekV2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Ernie4_5ForCausalLM",
    "Exaone4ForCausalLM",
    "FlexOlmoForCausalLM",
    "GemmaForCausalLM",
    "Gemma3ForCausalLM",
    "GlmForCausalLM",
    "Glm4ForCausalLM",
    "Glm4MoeForCausalLM",
    "GPTBigCodeForCausalLM",
    "GraniteForCausalLM",
    "GptOssForCausalLM",
    "HunYuanDenseV1ForCausalLM",
    "HunYuanMoEV1ForCausalLM",
    "LlamaForCausalLM",
    "Llama4ForCausalLM",
    "MiniMaxM2ForCausalLM",
    "MistralForCausalLM",
    "MixtralForCausalLM",
    "NemotronHForCausalLM",
    "OlmoForCausalLM",
    "Olmo2ForCausalLM",
    "Olmo3ForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "SeedOssForCausalLM",
    "SmolLM3ForCausalLM",
    "StableLmForCausalLM",
    "Starcoder2ForCausalLM",
]


def written(model: Any, directory: Path, **config: Any) -> Path:
    """The model as a checkpoint; `config` changes its config.json, None takes a key away."""
    model.save_pretrained(directory)
    path = directory / "config.json"
    changed = {**json.loads(path.read_text()), **config}
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not None}))
    return directory


def rename(directory: Path, change: Any) -> None:
    path = directory / "model.safetensors"
    save_file(
        {change(name): tensor for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"}
    )


def last_states(directory: Path) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of PROMPTS: states [N, H] after the last layer and after the one before, and the greedy tokens [N]."""
    model = ReferenceModel(str(directory), torch.float32)
    answers = [model.states(ids, [LAYERS - 1, LAYERS]) for ids in PROMPTS]
    states = torch.stack([states[-1] for states, _ in answers])
    return states[:, 1], states[:, 0], torch.tensor([greedy for _, greedy in answers])


def agrees(head: Head, directory: Path) -> torch.Tensor:
    """Returns the states [N, H] of PROMPTS after the last layer."""
    last, before, greedy = last_states(directory)
    assert head.disagreements(last, greedy) == []
    assert (
        len(head.disagreements(head.normalized(last), greedy)) + len(head.disagreements(before, greedy)) > 0
    )
    return last


@pytest.mark.parametrize(
    "architecture", [*USUAL, *(pytest.param(name, marks=pytest.mark.nightly) for name in OTHERS)]
)
def test_right_states_agree_and_wrong_ones_do_not(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    head = read_head(written(model, tmp_path))
    ours = head.logits(agrees(head, tmp_path))
    with torch.no_grad():
        theirs = torch.cat([model(torch.tensor([ids]), use_cache=False).logits[:, -1] for ids in PROMPTS])
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


# --- names and ties


def test_a_wrapper_that_transformers_does_not_know(tmp_path: Path) -> None:
    model = tiny_model("LlamaForCausalLM", tie_word_embeddings=True)
    text = written(model, tmp_path / "text", tie_word_embeddings=None)
    last, _, greedy = last_states(written(model, tmp_path / "plain"))
    rename(text, lambda name: f"language_model.{name}")
    inner = json.loads((text / "config.json").read_text())
    outer = {
        "architectures": ["UnknownForConditionalGeneration"],
        "model_type": "unknown",
        "text_config": inner,
    }
    (text / "config.json").write_text(json.dumps({**outer, "tie_word_embeddings": True}))
    assert read_head(text).disagreements(last, greedy) == []
    (text / "config.json").write_text(json.dumps({**outer, "tie_word_embeddings": False}))
    with pytest.raises(InputError, match=r"no weights for lm_head\.weight"):
        read_head(text)


def test_another_path_to_the_language_model(tmp_path: Path) -> None:
    model = tiny_model("LlamaForCausalLM")
    last, _, greedy = last_states(written(model, tmp_path))
    rename(tmp_path, lambda name: name.replace("model.", "model.language_model.", 1))
    assert read_head(tmp_path).disagreements(last, greedy) == []


def test_a_head_of_its_own_is_used_although_config_json_says_tied(tmp_path: Path) -> None:
    model = tiny_model("LlamaForCausalLM", tie_word_embeddings=False)
    last, _, greedy = last_states(written(model, tmp_path))
    written(model, tmp_path, tie_word_embeddings=True)
    assert read_head(tmp_path).disagreements(last, greedy) == []


def test_a_shape_that_is_not_the_architectures_is_said(tmp_path: Path) -> None:
    written(tiny_model("LlamaForCausalLM"), tmp_path, vocab_size=VOCABULARY + 8)
    with pytest.raises(InputError, match=r"lm_head\.weight .* is \[256, 64\]"):
        read_head(tmp_path)


def test_an_architecture_that_transformers_does_not_know_is_said(tmp_path: Path) -> None:
    written(
        tiny_model("LlamaForCausalLM"), tmp_path, architectures=["NoSuchForCausalLM"], model_type="nosuch"
    )
    with pytest.raises(InputError, match="nosuch"):
        read_head(tmp_path)


# --- quantized heads


def replace_head(directory: Path, parts: dict[str, torch.Tensor]) -> None:
    path = directory / "model.safetensors"
    tensors = load_file(path)
    del tensors["lm_head.weight"]
    save_file(
        {**tensors, **{f"lm_head.{name}": part for name, part in parts.items()}},
        path,
        metadata={"format": "pt"},
    )


def eight_bit(weight: torch.Tensor, scale: torch.Tensor, name: str) -> dict[str, torch.Tensor]:
    """Stored in 8 bits; `scale` [] or [rows, columns], each of as many blocks."""
    full = scale
    for dim in range(scale.dim()):
        full = full.repeat_interleave(weight.shape[dim] // scale.shape[dim], dim)
    return {"weight": (weight / full).to(torch.float8_e4m3fn), name: scale}


def test_quantized_heads_stand_for_their_values(tmp_path: Path) -> None:
    from compressed_tensors.compressors import pack_to_int32

    model = tiny_model("LlamaForCausalLM", tie_word_embeddings=False)
    states, weight = torch.randn(5, 64), model.lm_head.weight.detach()
    plain = read_head(written(model, tmp_path)).logits(states)
    integers = (weight / (scale := weight.abs().amax(1, keepdim=True) / 127)).round()
    stored = [
        eight_bit(weight, torch.tensor(0.01), "weight_scale"),
        eight_bit(weight, torch.rand(VOCABULARY, 1) * 0.01 + 0.005, "weight_scale"),
        eight_bit(weight, torch.rand(2, 1) * 0.01 + 0.005, "weight_scale_inv"),
        {
            "weight_packed": pack_to_int32(integers.to(torch.int8), 8),
            "weight_scale": scale,
            "weight_shape": torch.tensor(weight.shape),
        },
    ]
    for parts in stored:
        replace_head(written(model, tmp_path), parts)
        torch.testing.assert_close(read_head(tmp_path).logits(states), plain, atol=0.1, rtol=0.05)


@pytest.mark.parametrize(
    "parts",
    [
        {"qweight": torch.zeros(8, 256, dtype=torch.int32), "scales": torch.ones(1, 256)},
        {"weight": torch.zeros(256, 32, dtype=torch.uint8), "weight_scale": torch.ones(256, 4)},
        {"weight": torch.zeros(256, 64, dtype=torch.int8)},
    ],
    ids=["gptq", "fp4", "int8 without scale"],
)
def test_a_head_that_is_quantized_otherwise_is_said(parts: dict[str, torch.Tensor], tmp_path: Path) -> None:
    replace_head(written(tiny_model("LlamaForCausalLM", tie_word_embeddings=False), tmp_path), parts)
    with pytest.raises(InputError, match="quantized in a way that is not understood"):
        read_head(tmp_path)
