"""The target's tokenizer, loaded once a process, and what the rest of this package asks it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_data.config import Target, Tokenization
from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes
from eagle3_data.target import TargetDescription
from eagle3_data.tokenization.encoder import Backend, FastBackend, SlowBackend
from eagle3_data.tokenization.template import ChatTemplate


@dataclass(frozen=True)
class TargetTokenizer:
    """A loaded tokenizer. `special_ids` are its special and stop tokens, ascending, all below the model's vocabulary size."""

    backend: Backend
    template: ChatTemplate | None
    special_ids: tuple[int, ...]
    description: dict[str, Any]


def load_tokenizer(description: TargetDescription, target: Target, settings: Tokenization) -> TargetTokenizer:
    """Load the tokenizer of the checkpoint directory. Raises InputError naming what cannot be read and what to do."""
    from transformers import AutoTokenizer

    from eagle3_data.vocabulary import special_token_ids

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(description.path, trust_remote_code=target.trust_remote_code)
    except Exception as error:
        hint = "" if target.trust_remote_code else "; if the checkpoint brings its own code, set target.trust_remote_code: true after reading it"
        raise InputError(f"the tokenizer in {description.path} cannot be loaded{hint}") from error
    fast = getattr(tokenizer, "backend_tokenizer", None)
    stops = stop_token_ids(Path(description.path), tokenizer)
    source = _template_source(tokenizer)
    variables = {**tokenizer.special_tokens_map, **settings.template_arguments}
    added = [str(token) for token in tokenizer.get_added_vocab()]
    template = ChatTemplate(source, variables, [tokenizer.decode([i], skip_special_tokens=False) for i in stops], added) if source else None
    special_ids = special_token_ids(tokenizer, stops, description.vocab_size)
    return TargetTokenizer(
        backend=FastBackend(fast) if fast is not None else SlowBackend(tokenizer),
        template=template,
        special_ids=special_ids,
        description={
            "class": type(tokenizer).__name__,
            "fast": fast is not None,
            "chat_template": hash_bytes(source.encode()) if source else None,
            "generation_tags": bool(template and template.has_generation_tags),
            "stop_texts": list(template.stops) if template else [],
            "special_ids": list(special_ids),
        },
    )


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


def _template_source(tokenizer: Any) -> str:
    source = getattr(tokenizer, "chat_template", None)
    if isinstance(source, dict):
        source = source.get("default") or next(iter(source.values()), "")
    return source or ""
