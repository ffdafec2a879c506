"""Small tokenizers built on the spot, for tests that need real ones, and what tests read of the samples made
with them."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from eagle3_data.config import Data, Target, Tokenization
from eagle3_data.target import TargetDescription
from eagle3_data.tokenization.reading.rows import Outcome, Row, Sample
from eagle3_data.tokenization.samples import RowTokenizer
from eagle3_data.tokenization.tokenizer import TargetTokenizer, load_tokenizer

TEMPLATES = Path(__file__).parent / "data" / "templates"

TEXTS = [
    "Hello, how are you today? The answer is four. I am fine, thank you very much.",
    "user assistant system tool name arguments city weather Paris Rome function call result",
    "What is the weather in Paris? It is sunny. def add(a, b): return a + b",
] * 20

SPECIAL = [
    *("<|endoftext|>", "<|begin|>", "<|im_start|>", "<|im_end|>", "<|header|>", "<|end_header|>", "<|eot|>"),
    *("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>"),
    *("<|tool_calls|>", "<|tool_calls_end|>", "<|tool_call|>", "<|tool_call_end|>", "<|tool_arguments|>"),
    *("<|User|>", "<|Assistant|>", "<|call|>", "<|/call|>"),
    *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"),
]
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Added tokens that are not special, as in Qwen3."""


def save_tokenizer(
    directory: Path, chat_template: str | None, *, bos: str = "<|begin|>", eos: str = "<|endoftext|>"
) -> Any:
    """Train a byte-level BPE tokenizer, give it special tokens and a template, save it to `directory` and
    return it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(
            vocab_size=600, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
        ),
    )
    core.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    core.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),  # as Llama 3 has it: offsets leave out a word's space
            processors.TemplateProcessing(
                single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, core.token_to_id(bos))]
            ),
        ]
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token=bos, eos_token=eos)
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(directory)
    return tokenizer


def describe(directory: Path, vocab_size: int) -> TargetDescription:
    """What describe_target would say of a model with the tokenizer in `directory`."""
    return TargetDescription(
        str(directory),
        "LlamaForCausalLM",
        "LlamaForCausalLM",
        "llama",
        4,
        64,
        vocab_size,
        4096,
        "none",
        1,
        False,
        "0" * 32,
    )


HELD: list[TemporaryDirectory[str]] = []
"""Removed when the tests end."""


@lru_cache
def tiny_directory(template: str | None) -> tuple[Path, int]:
    """A directory with a tokenizer and the named template, and the tokenizer's size."""
    HELD.append(TemporaryDirectory(prefix="tokenizer-"))
    directory = Path(HELD[-1].name)
    tokenizer = save_tokenizer(
        directory, (TEMPLATES / f"{template}.jinja").read_text(encoding="utf-8") if template else None
    )
    return directory, len(tokenizer)


class Tiny:
    """Tokenization with a tiny tokenizer and one of the templates."""

    def __init__(
        self,
        template: str | None,
        *,
        source: dict[str, Any] | None = None,
        directory: Path | None = None,
        **settings: Any,
    ) -> None:
        path, size = tiny_directory(template) if directory is None else (directory, 1 << 20)
        self.settings = Tokenization(**settings)
        self.tokenizer: TargetTokenizer = load_tokenizer(
            describe(path, size),
            Target(path=str(path), trust_remote_code=directory is not None),
            self.settings,
        )
        self.rows = RowTokenizer(
            self.tokenizer, Data(sources=({"path": "talks.jsonl", **(source or {})},)), self.settings
        )

    def outcome(self, row: Any) -> Outcome:
        return self.rows(Row(0, 0, "line 1", text=row if isinstance(row, (str, bytes)) else json.dumps(row)))

    def fate(self, row: Any) -> str:
        """ "kept", or the reason why not."""
        outcome = self.outcome(row)
        return "kept" if outcome.samples else outcome.dropped[0].reason

    def sample(self, row: Any) -> Sample:
        outcome = self.outcome(row)
        assert len(outcome.samples) == 1, outcome.dropped
        return outcome.samples[0]

    def shown(self, *turns: dict[str, Any], **row: Any) -> str:
        """The sample of a conversation as text, with ⟦ ⟧ around its trained tokens."""
        return self.show(self.sample({"messages": list(turns), **row}))

    def show(self, sample: Sample) -> str:
        pieces = []
        for trained, run in groupby(zip(sample.mask, ids_of(sample), strict=True), key=lambda pair: pair[0]):
            text = self.tokenizer.backend.decode([token for _, token in run])
            pieces.append(f"⟦{text}⟧" if trained else text)
        return "".join(pieces)


def ids_of(sample: Sample) -> list[int]:
    return [int(token) for token in np.frombuffer(sample.ids, "<i4")]


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def user(content: Any) -> dict[str, Any]:
    return turn("user", content)


def assistant(content: Any, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return turn("assistant", content, **({"tool_calls": list(calls)} if calls else {}), **more)


def call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    return {"id": f"{name}:{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def talk(*texts: str) -> list[dict[str, Any]]:
    """User and assistant in turn."""
    return [turn(("user", "assistant")[number % 2], text) for number, text in enumerate(texts)]
