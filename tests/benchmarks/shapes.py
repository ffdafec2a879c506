"""Checkpoints of real shapes with random weights, made on the spot, on the GPU where there is one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from eagle3_data.demo.build import read_conversations
from eagle3_data.demo.tiny_llama import RECIPE
from eagle3_data.demo.tokenizer import train_tokenizer

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "num_hidden_layers": 32,
    "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 500000.0,
    "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 128256,
    "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 12288,
    "moe_intermediate_size": 1024, "num_hidden_layers": 24, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 64,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "norm_topk_prob": True,
    "first_k_dense_replace": 1, "moe_layer_freq": 1, "routed_scaling_factor": 1.0, "topk_method": "noaux_tc",
    "scoring_func": "sigmoid", "num_nextn_predict_layers": 0, "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-6, "hidden_act": "silu", "rope_theta": 50000.0, "tie_word_embeddings": False,
    "dtype": "bfloat16",
}  # fmt: skip
TINY = LLAMA | {
    "vocab_size": 2048, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 768, "num_hidden_layers": 8, "head_dim": 64,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {"llama-8b": LLAMA, "deepseek-20b": DEEPSEEK, "tiny": TINY}
SHARD_BYTES = 4 << 30


def make_checkpoint(shape: str, directory: Path, conversations: Path) -> None:
    """Weights, config.json and the demo's tokenizer."""
    config = SHAPES[shape]
    tokenizer = train_tokenizer(RECIPE, read_conversations(conversations))
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(directory)
    config = {**config, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id}
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
    shapes = _deepseek(config) if "kv_lora_rank" in config else _llama(config)
    _write(dict(shapes), directory)


def _write(shapes: dict[str, tuple[int, ...]], directory: Path) -> None:
    draw = torch.Generator("cuda" if torch.cuda.is_available() else "cpu").manual_seed(0)
    files: dict[str, str] = {}
    shard: dict[str, torch.Tensor] = {}
    size = total = 0
    for name, shape in shapes.items():
        numbers = torch.randn(shape, generator=draw, device=draw.device)
        numbers = 1 + 0.1 * numbers if "norm" in name else 0.02 * numbers
        is_router_bias = name.endswith("e_score_correction_bias")
        shard[name] = numbers.to(torch.float32 if is_router_bias else torch.bfloat16).cpu()
        size += 2 * math.prod(shape)
        if size > SHARD_BYTES or name == list(shapes)[-1]:
            file = f"model-{len(set(files.values())) + 1:05d}.safetensors"
            save_file(shard, directory / file, metadata={"format": "pt"})
            files |= dict.fromkeys(shard, file)
            shard, size, total = {}, 0, total + size
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _ends(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    vocabulary, width = config["vocab_size"], config["hidden_size"]
    yield "model.embed_tokens.weight", (vocabulary, width)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (vocabulary, width)
    for layer in range(config["num_hidden_layers"]):
        yield f"model.layers.{layer}.input_layernorm.weight", (width,)
        yield f"model.layers.{layer}.post_attention_layernorm.weight", (width,)


def _mlp(prefix: str, width: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name in ("gate_proj", "up_proj"):
        yield f"{prefix}.{name}.weight", (inner, width)
    yield f"{prefix}.down_proj.weight", (width, inner)


def _llama(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, heads = config["hidden_size"], config["num_attention_heads"]
    keys = width // heads * config["num_key_value_heads"]
    yield from _ends(config)
    for layer in range(config["num_hidden_layers"]):
        for name, rows in (("q_proj", width), ("k_proj", keys), ("v_proj", keys), ("o_proj", width)):
            yield f"model.layers.{layer}.self_attn.{name}.weight", (rows, width)
        yield from _mlp(f"model.layers.{layer}.mlp", width, config["intermediate_size"])


def _deepseek(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, heads, inner = (
        config["hidden_size"],
        config["num_attention_heads"],
        config["moe_intermediate_size"],
    )
    query, latent, rope = config["q_lora_rank"], config["kv_lora_rank"], config["qk_rope_head_dim"]
    plain, values = config["qk_nope_head_dim"], config["v_head_dim"]
    yield from _ends(config)
    for layer in range(config["num_hidden_layers"]):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        yield f"{attention}.q_a_proj.weight", (query, width)
        yield f"{attention}.q_a_layernorm.weight", (query,)
        yield f"{attention}.q_b_proj.weight", (heads * (plain + rope), query)
        yield f"{attention}.kv_a_proj_with_mqa.weight", (latent + rope, width)
        yield f"{attention}.kv_a_layernorm.weight", (latent,)
        yield f"{attention}.kv_b_proj.weight", (heads * (plain + values), latent)
        yield f"{attention}.o_proj.weight", (width, heads * values)
        if layer < config["first_k_dense_replace"]:
            yield from _mlp(mlp, width, config["intermediate_size"])
            continue
        yield f"{mlp}.gate.weight", (config["n_routed_experts"], width)
        yield f"{mlp}.gate.e_score_correction_bias", (config["n_routed_experts"],)
        yield from _mlp(f"{mlp}.shared_experts", width, config["n_shared_experts"] * inner)
        for expert in range(config["n_routed_experts"]):
            yield from _mlp(f"{mlp}.experts.{expert}", width, inner)
