"""The tokenizers that a checkpoint offers beside the one transformers makes of it, and texts on which they
must agree.

None of a checkpoint's code is run: of a tokenizer in Python over tiktoken, as Kimi's, the split pattern is
read from the source.
"""

from __future__ import annotations

import ast
import base64
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_data.errors import headline
from eagle3_data.findings import Level
from eagle3_data.target.tokenizer import TEKKEN

PROBES = {
    "plain": "The quick brown fox jumps over the lazy dog, and the dog sleeps on.",
    "Han": "人工智能正在改变世界，北京大学的学生们说：“我们学习汉字、数学！”漢字與龍",
    "Han beside others": "使用GPU训练AI模型，BERT和GPT-4o都很强大；2024年，iPhone卖了3.5万台（50%）。",
    "Japanese and Korean": "東京で会いましょう。カタカナとひらがな。 안녕하세요, 반갑습니다.",
    "other scripts": "Привет, мир! Γειά σου κόσμε. שלום עולם مرحبا بالعالم नमस्ते दुनिया สวัสดี",
    "accents": "Äpfel, naïve façade, Łódź, cafe\u0301, Å, ﬁn",
    "emoji": "🙂 👩‍👩‍👧 🇩🇪 ❤️ 👍🏽",
    "digits": "7 42 123 1234 1234567890 3.14159 1,000,000 0x1F ½ ²",
    "code": 'def f(x):\n    return {"a": [1, 2]}  # done\n\tif (a->b != c) { i++; }\r\n',
    "whitespace": "a  b   c\n\n\nd \t e    \n  f\u00a0g\u3000h \n",
    "contractions": "I'll WE'RE don't it’s; CamelCaseWords snake_case_name e.g. U.S.A.",
    "punctuation": "...!!! ,;: -- __ == <= >= /* */ \\n (a)[b]{c} http://x.y/z?q=1&r=2",
}
"""Kinds of text that tokenizers split differently."""
VOCABULARY_SAMPLE = 4000
PATTERN_NAMES = {"pat_str", "pattern", "_pattern", "split_pattern", "pat"}


@dataclass(frozen=True)
class OwnTokenizer:
    """A tokenizer of the checkpoint: the file it is made from, and its `encode` of plain text.

    `level` is that of a difference: fails, or for SentencePiece, whose conversions treat blanks in their own
    way, a warning. `needs_code`: transformers builds it only by running the checkpoint's code.
    """

    source: str
    encode: Callable[[str], list[int]]
    level: Level = "fail"
    needs_code: bool = False


def own_tokenizers(directory: Path, code_is_used: bool) -> Iterator[OwnTokenizer | str]:
    """Each tokenizer of the directory; in its place a sentence where it cannot be compared.

    `code_is_used`: the tokenizer in use is the checkpoint's own code; its files need no second reading.
    """
    readers: list[tuple[str, Callable[[Path], OwnTokenizer]]] = [
        ("tokenizer.json", _from_tokenizers),
        (TEKKEN, _from_tekken),
        ("tokenizer.model", _from_model),
        ("spiece.model", _from_model),
        *((pattern, _from_tiktoken) for pattern in ("tiktoken.model", "*.tiktoken") if not code_is_used),
    ]
    for pattern, read in readers:
        for path in sorted(directory.glob(pattern)):
            try:
                yield read(path)
            except Exception as error:  # noqa: BLE001  whatever a damaged or unknown file makes a library raise
                yield f"{path.name} could not be compared: {headline(error)}"


def _from_tokenizers(path: Path) -> OwnTokenizer:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return OwnTokenizer(path.name, lambda text: tokenizer.encode(text, add_special_tokens=False).ids)


def _from_tekken(path: Path) -> OwnTokenizer:
    record = json.loads(path.read_text(encoding="utf-8"))
    special = record["config"].get("default_num_special_tokens") or len(record["special_tokens"])
    size = record["config"].get("default_vocab_size")
    entries = record["vocab"][: size - special] if size else record["vocab"]
    ranks = {base64.b64decode(entry["token_bytes"]): rank for rank, entry in enumerate(entries)}
    encode = _tiktoken(record["config"]["pattern"], ranks)
    return OwnTokenizer(path.name, lambda text: [number + special for number in encode(text)])


def _from_model(path: Path) -> OwnTokenizer:
    """A SentencePiece model, or tiktoken's ranks under the same name."""
    with open(path, "rb") as file:
        start = file.read(64)
    if b" " in start.splitlines()[0] and start.isascii():
        return _from_tiktoken(path)
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(path))
    return OwnTokenizer(path.name, model.encode, level="warn")


def _from_tiktoken(path: Path) -> OwnTokenizer:
    pattern = split_pattern(path.parent)
    if pattern is None:
        raise LookupError("no Python file of the checkpoint says by which pattern it splits text")
    lines = path.read_text(encoding="ascii").splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}
    return OwnTokenizer(path.name, _tiktoken(pattern, ranks), needs_code=True)


def _tiktoken(pattern: str, ranks: dict[bytes, int]) -> Callable[[str], list[int]]:
    from tiktoken import Encoding

    encoding = Encoding("checkpoint", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return encoding.encode_ordinary


def split_pattern(directory: Path) -> str | None:
    """The pattern that the checkpoint's tokenizer code gives to tiktoken, where that is a literal."""
    for path in sorted(directory.glob("*.py"), key=lambda path: ("token" not in path.name, path.name)):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)} | {
                    target.attr for target in node.targets if isinstance(target, ast.Attribute)
                }
                if {name.lower() for name in names} & PATTERN_NAMES and (pattern := _text(node.value)):
                    return pattern
            elif isinstance(node, ast.keyword) and node.arg == "pat_str" and (pattern := _text(node.value)):
                return pattern
    return None


def _text(node: ast.expr) -> str | None:
    """The value of a literal text, of a sum of such, or of a literal join of literals."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [_text(left), _text(right)]
            separator = ""
        case ast.Call(
            func=ast.Attribute(value=ast.Constant(value=str(separator)), attr="join"),
            args=[ast.List(elts=elements) | ast.Tuple(elts=elements)],
        ):
            parts = [_text(element) for element in elements]
        case _:
            return None
    return None if None in parts else separator.join(part for part in parts if part is not None)


def vocabulary_text(tokenizer: Any) -> str:
    """Tokens of the vocabulary itself, drawn at random, as one text: what no list of kinds thinks of."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    ids = sorted(set(tokenizer.get_vocab().values()) - special)
    drawn = random.Random(0).sample(ids, min(VOCABULARY_SAMPLE, len(ids)))
    texts = (tokenizer.decode([number], skip_special_tokens=False) for number in drawn)
    return "".join(text for text in texts if text.isprintable() and "\ufffd" not in text)


def encode_plain(tokenizer: Any, text: str) -> list[int]:
    """What transformers' tokenizer makes of a text without adding special tokens."""
    return list(tokenizer.encode(text, add_special_tokens=False))
