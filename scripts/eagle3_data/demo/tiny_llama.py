"""`tiny-llama`: a dense model with the structure of Llama, 6 million parameters, ChatML."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from eagle3_data.demo.recipe import Recipe


def make_model(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """An untrained float32 model. Its vocabulary is padded to a multiple of 64, as real ones are."""
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=256,
        head_dim=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
        num_hidden_layers=8,
        max_position_embeddings=16384,
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write model and tokenizer to `directory`, the weights in bfloat16."""
    model.to(torch.bfloat16).save_pretrained(directory)
    tokenizer.save_pretrained(directory)


RECIPE = Recipe(
    template="chatml.jinja",
    special_tokens=(
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
    ),
    eos_token="<|im_end|>",
    pad_token="<|endoftext|>",
    steps=50,
    make_model=make_model,
    save=save,
)
