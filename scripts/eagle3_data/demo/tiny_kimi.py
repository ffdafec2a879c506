"""`tiny-kimi`: the language model of Kimi-K2.5 (DeepSeek-V3 with MLA and MoE, in its multimodal wrapper) with
17 million parameters.

Names, layout and keys are those of the real checkpoint, which has no counterpart in transformers' own
writing. The vision tower is described but has no weights: text is all that is ever run.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from eagle3_data.demo.recipe import Recipe
from eagle3_data.records import JsonObject

LANGUAGE_MODEL_PREFIX = "language_model."
ROUTER_BIAS_STD = 0.05
IMAGE_PREPROCESSING = {
    "patch_size": 14,
    "merge_kernel_size": 2,
    "temporal_merge_kernel_size": 4,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
"""vLLM reads these before it knows that only text will come."""


def make_model(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """An untrained float32 language model.

    8 heads, for tensor parallelism over 8 devices; the head sizes are Kimi's own, since MLA kernels know no
    others.
    """
    config = DeepseekV3Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=256,
        intermediate_size=512,
        moe_intermediate_size=64,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        q_lora_rank=64,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        qk_nope_head_dim=128,
        v_head_dim=128,
        n_routed_experts=8,
        num_experts_per_tok=2,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        # with Kimi's 2.8, a routing that flips in bfloat16 moves the states of so small a model by several
        # percent
        routed_scaling_factor=1.0,
        num_nextn_predict_layers=0,
        max_position_embeddings=16384,
        rope_theta=50000.0,
        rope_scaling={
            "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0
        },
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    model = DeepseekV3ForCausalLM(config)
    for layer in model.model.layers[config.first_k_dense_replace :]:
        nn.init.normal_(layer.mlp.gate.e_score_correction_bias, std=ROUTER_BIAS_STD)
    return model


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write the language model, in bfloat16, under the wrapper's names and configuration, and the
    tokenizer."""
    model.to(torch.bfloat16).save_pretrained(directory)
    weights = directory / "model.safetensors"
    save_file(
        {LANGUAGE_MODEL_PREFIX + name: tensor for name, tensor in load_file(weights).items()},
        weights,
        metadata={"format": "pt"},
    )
    config = directory / "config.json"
    config.write_text(
        json.dumps(wrapper_config(json.loads(config.read_text(encoding="utf-8")), tokenizer), indent=2),
        encoding="utf-8",
    )
    (directory / "preprocessor_config.json").write_text(
        json.dumps({"media_proc_cfg": IMAGE_PREPROCESSING}, indent=2), encoding="utf-8"
    )
    tokenizer.save_pretrained(directory)


def wrapper_config(text_config: JsonObject, tokenizer: PreTrainedTokenizerFast) -> JsonObject:
    """The config.json of the multimodal wrapper around a DeepSeek-V3 one.

    vLLM gives the router its bias only where `topk_method` and `scoring_func` say so; transformers does not
    write them.
    """
    media_pad = tokenizer.convert_tokens_to_ids("<|media_pad|>")
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "image_token_id": media_pad,
        "media_placeholder_token_id": media_pad,
        "text_config": (
            text_config
            | {
                "model_type": "kimi_k2",
                "topk_method": "noaux_tc",
                "scoring_func": "sigmoid",
                "moe_layer_freq": 1,
            }
        ),
        "vision_config": {
            "model_type": "kimi_k25_vision",
            "num_hidden_layers": 1,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "intermediate_size": 128,
        },
    }


RECIPE = Recipe(
    template="kimi.jinja",
    special_tokens=(
        "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
        "<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|media_begin|>",
        "<|media_content|>", "<|media_end|>", "<|media_pad|>", "[PAD]",
    ),
    eos_token="<|im_end|>",
    pad_token="[PAD]",
    steps=40,
    make_model=make_model,
    save=save,
)  # fmt: skip
