"""A byte-level BPE tokenizer built on the spot, for tests that need a real one."""

from pathlib import Path
from typing import Any

TEXTS = [
    "Hello, how are you today? The answer is four. I am fine, thank you very much.",
    "user assistant system tool name arguments city weather Paris Rome function call result",
    "What is the weather in Paris? It is sunny. def add(a, b): return a + b",
] * 20

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin|>"]


def save_tokenizer(
    directory: Path, chat_template: str, *, special: list[str] | None = None, vocab_size: int = 600, bos: str = "", eos: str = "<|endoftext|>"
) -> Any:
    """Train a tokenizer, give it `special` tokens and a template, save it to `directory` and return it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special or SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    core.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos, **({"bos_token": bos} if bos else {}))
    tokenizer.chat_template = chat_template
    tokenizer.save_pretrained(directory)
    return tokenizer
