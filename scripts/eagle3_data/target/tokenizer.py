"""Loads a checkpoint's tokenizer, in the same way for checking and for tokenizing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEKKEN = "tekken.json"


def load_checkpoint_tokenizer(directory: str | Path, trust_remote_code: bool) -> Any:
    """transformers' tokenizer of a checkpoint directory. Raises whatever transformers raises.

    Mistral's tekken.json is converted: the class that transformers takes for it where mistral_common is
    installed reads no special tokens from a rendered text.
    """
    from transformers import AutoTokenizer

    if (Path(directory) / TEKKEN).is_file():
        if not (Path(directory) / "tokenizer.json").is_file():
            from transformers.integrations.mistral import convert_tekken_tokenizer

            return convert_tekken_tokenizer(str(Path(directory) / TEKKEN))
        options = {"mistral_format": False}
    else:
        options = {}
    return AutoTokenizer.from_pretrained(
        str(directory), trust_remote_code=trust_remote_code, local_files_only=True, **options
    )
