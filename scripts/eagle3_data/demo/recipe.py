"""What distinguishes one demo target from another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Recipe:
    """How to build a demo target.

    `special_tokens` get the ids 0, 1, ... in this order; `eos_token` and `pad_token` are two of them.
    `make_model` returns an untrained float32 causal language model; `save` writes a trained one, in bfloat16,
    as a checkpoint.
    """

    template: str
    special_tokens: tuple[str, ...]
    eos_token: str
    pad_token: str
    steps: int
    make_model: Callable[[PreTrainedTokenizerFast], PreTrainedModel]
    save: Callable[[PreTrainedModel, PreTrainedTokenizerFast, Path], None]
