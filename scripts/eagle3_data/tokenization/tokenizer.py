"""The target's tokenizer, loaded once, and what the rest of this package asks it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from eagle3_data.config import Target, Tokenization
from eagle3_data.errors import ConfigError, InputError
from eagle3_data.target import TargetDescription
from eagle3_data.target.tokenizer import load_checkpoint_tokenizer
from eagle3_data.tokenization.backends import TRIAL, Backend, FastBackend, SlowBackend
from eagle3_data.tokenization.masking.template import ChatTemplate, probing
from eagle3_data.tokenization.pieces import Pieces


@dataclass(frozen=True)
class TargetTokenizer:
    """A loaded tokenizer. `prefix` are the ids (BOS) that it puts before a plain text; `special_ids` its
    special and stop tokens."""

    backend: Backend
    template: ChatTemplate | None
    prefix: tuple[int, ...]
    special_ids: tuple[int, ...]
    vocab_size: int
    name: str


def load_tokenizer(description: TargetDescription, target: Target, settings: Tokenization) -> TargetTokenizer:
    """Load the tokenizer of the checkpoint directory. Raises InputError naming what cannot be read and what
    to do."""
    from eagle3_data.vocabulary import special_token_ids

    try:
        tokenizer = load_checkpoint_tokenizer(description.path, target.trust_remote_code)
    except Exception as error:
        hint = (
            ""
            if target.trust_remote_code
            else "; if the checkpoint brings its own code, read it and set target.trust_remote_code: true"
        )
        raise InputError(f"the tokenizer in {description.path} cannot be loaded{hint}") from error
    prefix = special_prefix(tokenizer)  # before FastBackend takes the tokenizer's own post-processor away
    stops = stop_token_ids(Path(description.path), tokenizer)
    with probing():
        template = _template(tokenizer, stops, settings, description.path)
    return TargetTokenizer(
        prefix=prefix,
        backend=(
            Pieces(_backend(tokenizer), template.control_tokens, template.added_tokens)
            if template
            else _backend(tokenizer)
        ),
        template=template,
        special_ids=special_token_ids(tokenizer, stops, description.vocab_size),
        vocab_size=description.vocab_size,
        name=type(tokenizer).__name__,
    )


def _backend(tokenizer: Any) -> Backend:
    """The Rust tokenizer behind a fast one, unless its Python class does more than ask it."""
    core = getattr(tokenizer, "backend_tokenizer", None)
    if core is None:
        return SlowBackend(tokenizer)
    expected = list(tokenizer(TRIAL, add_special_tokens=False)["input_ids"])
    backend = FastBackend(core)
    return backend if backend.encode(TRIAL, [])[0] == expected else SlowBackend(tokenizer)


def stop_token_ids(directory: Path, tokenizer: Any) -> list[int]:
    """Ids that stop generation: the tokenizer's EOS and those of generation_config.json and config.json."""
    found = [tokenizer.eos_token_id]
    for name in ("generation_config.json", "config.json"):
        try:
            value = json.loads((directory / name).read_text(encoding="utf-8")).get("eos_token_id")
        except (OSError, ValueError, AttributeError):
            continue
        found += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(i for i in found if isinstance(i, int)))


def special_prefix(tokenizer: Any) -> tuple[int, ...]:
    """The tokens that a tokenizer by itself puts before a text, found by encoding one with and without
    special tokens."""
    bare = list(tokenizer("x", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("x", add_special_tokens=True)["input_ids"])
    starts = (start for start in range(len(full) - len(bare) + 1) if full[start : start + len(bare)] == bare)
    return tuple(full[: next(starts, 0)])


def _template(tokenizer: Any, stops: list[int], settings: Tokenization, path: str) -> ChatTemplate | None:
    from transformers import PreTrainedTokenizerBase

    source = getattr(tokenizer, "chat_template", None)
    if settings.chat_template:
        try:
            source = Path(settings.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"tokenization.chat_template: {settings.chat_template} cannot be read; correct the path"
            ) from error
    if isinstance(source, dict):  # several named templates
        source = source.get("default") or next(iter(source.values()), None)
    if not source:
        return None
    own_way = type(tokenizer).apply_chat_template is not PreTrainedTokenizerBase.apply_chat_template
    return ChatTemplate(
        source,
        (
            settings.template_arguments
            if own_way
            else {**tokenizer.special_tokens_map, **settings.template_arguments}
        ),
        own_way=tokenizer.apply_chat_template if own_way else None,
        today=date.fromisoformat(settings.date),
        stop_texts=[tokenizer.decode([i], skip_special_tokens=False) for i in stops],
        added_tokens=[str(token) for token in tokenizer.get_added_vocab()],
        name=f"the chat template {settings.chat_template or 'of ' + path}",
    )
