"""Tiny random models of architectures of transformers, from their configurations' own defaults made small."""

from __future__ import annotations

from typing import Any

import torch
import transformers

LAYERS, VOCABULARY = 4, 256
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "word_embed_proj_dim"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_global_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "rotary_dim"), 16),
    **dict.fromkeys(
        ("intermediate_size", "intermediate_size_mlp", "ffn_dim", "n_inner", "block_ff_dim"), 128
    ),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 64),
    "moe_shared_expert_intermediate_size": 64,
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 8),
    "num_experts_per_tok": 2,
    **dict.fromkeys(("n_group", "topk_group", "n_groups", "first_k_dense_replace"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), 512),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("linear_num_key_heads",), 2),
    **dict.fromkeys(("linear_num_value_heads",), 4),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("mamba_num_heads", "mamba_n_heads"), 8),
    **dict.fromkeys(("mamba_head_dim", "mamba_d_head", "ssm_state_size", "sliding_window"), 16),
    "num_kv_shared_layers": 0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_model(architecture: str, **more: Any) -> Any:
    """A float32 model with random weights; norms of either sign, so that no norm passes for another."""
    cls = getattr(transformers, architecture)
    default = cls.config_class()
    text = default.get_text_config(decoder=True)
    aliases = type(text).attribute_map
    given = {name: size for name, size in SMALL.items() if hasattr(text, name) and name not in aliases}
    if "kv_lora_rank" in given:
        given["num_key_value_heads"] = given["num_attention_heads"]
    for name in ("layer_types", "mlp_layer_types", "layers_block_type"):
        if listed := vars(text).get(name):
            given[name] = (list(dict.fromkeys(listed)) * LAYERS)[:LAYERS]
    torch.manual_seed(0)
    model = cls(type(default)(**{**given, **more})).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2:
                sign = torch.where(torch.rand(parameter.shape) < 0.5, -1.0, 1.0)
                parameter.copy_((torch.rand(parameter.shape) + 0.5) * sign)
            else:
                parameter.copy_(torch.randn(parameter.shape) * parameter.shape[-1] ** -0.5)
    return model
