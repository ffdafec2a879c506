"""The demo targets' tokenizers: byte-level BPE trained on the conversations, and a chat template."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from eagle3_data.demo.recipe import Recipe
from eagle3_data.records import JsonObject

VOCAB_SIZE = 2000


def train_tokenizer(recipe: Recipe, conversations: list[JsonObject]) -> PreTrainedTokenizerFast:
    """A tokenizer of 2,000 tokens that encodes any text without loss and adds no token that the chat template
    did not write."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(recipe.special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(_strings(conversations), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe, eos_token=recipe.eos_token, pad_token=recipe.pad_token
    )
    tokenizer.chat_template = (Path(__file__).parent / "templates" / recipe.template).read_text(
        encoding="utf-8"
    )
    return tokenizer


def encode_conversations(tokenizer: PreTrainedTokenizerFast, conversations: list[JsonObject]) -> list[int]:
    """The token ids of all conversations, rendered with the chat template, one after the other."""
    ids: list[int] = []
    for conversation in conversations:
        text = tokenizer.apply_chat_template(
            conversation["messages"], tools=conversation.get("tools"), tokenize=False
        )
        ids += tokenizer.encode(text, add_special_tokens=False)
    return ids


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _strings(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)
