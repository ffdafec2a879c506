"""Text with marked spans to token ids and a loss mask, such that a trained token is never partly prompt.

A token that straddles the border of a span (a prompt that ends in a line feed before an answer that starts
with one) would be trained for characters that the assistant did not write. There the text is encoded in
pieces: the prompt, then the answer, which is also how an engine sees them when it generates. Everywhere else
the ids are those of the whole text.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, compress, pairwise
from typing import Any, Protocol

from eagle3_data.tokenization.reading.rows import DropError

MOST_TOKENS_OF_A_CHARACTER = 8


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids [T] and their loss mask [T] of 0 and 1. `cut`: the text has further tokens, which are not
    wanted."""

    ids: list[int]
    mask: bytes
    cut: bool = False


class Backend(Protocol):
    """What is needed of a tokenizer. Neither method adds or drops special tokens."""

    def encode(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        """Token ids, and for each border (character positions, ascending) the number of tokens before it,
        None if a token straddles it."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens written out."""


class FastBackend:
    """A tokenizer of the `tokenizers` library, asked directly: its offsets stay in Rust, only those at
    borders are looked up."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers import processors

        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.post_processor = processors.ByteLevel(
            trim_offsets=False
        )  # others leave a word's space out of its offsets
        self._tokenizer = tokenizer
        self._space_swallowing = {
            i for i, token in tokenizer.get_added_tokens_decoder().items() if token.lstrip or token.rstrip
        }

    def encode(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:
            text.encode()  # what it really has against a text with half a character: UnicodeEncodeError
            raise
        ids = encoding.ids
        return ids, [self._tokens_before(encoding, ids, border, text) for border in borders]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def _tokens_before(self, encoding: Any, ids: list[int], border: int, text: str) -> int | None:
        if border == len(text):
            return len(ids)
        if border == 0:
            return 0
        token = encoding.char_to_token(border)  # a character of several tokens is found at its first
        if token is None:
            return None
        start, end = encoding.token_to_chars(token)
        if start == border:
            return int(token)
        swallowed = ids[token] in self._space_swallowing and text[border:end].isspace()
        return int(token) + 1 if swallowed else None


class SlowBackend:
    """A tokenizer in Python, such as one over tiktoken from a checkpoint's own code. It knows no offsets.

    Where the parts between the borders, encoded apart, give the ids of the whole, as they do beside special
    tokens, their lengths are the answer. Else the borders are looked for by decoding.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        ids = self._encode(text)
        parts = [
            self._encode(text[start:end]) if end > start else []
            for start, end in pairwise([0, *borders, len(text)])
        ]
        if list(chain.from_iterable(parts)) == ids:
            return ids, list(accumulate(map(len, parts[:-1])))
        return ids, [self._tokens_before(text, ids, border) for border in borders]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        options = {
            "skip_special_tokens": False,
            "clean_up_tokenization_spaces": False,
            "spaces_between_special_tokens": False,
        }
        return str(self._tokenizer.decode(list(ids), **options))

    def _tokens_before(self, text: str, ids: list[int], border: int) -> int | None:
        """Bisection over the decoded length of prefixes, then a comparison with the text itself."""
        low, high = 0, len(ids)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if len(self.decode(ids[:middle])) < border else (low, middle)
        ends = range(
            low, min(low + MOST_TOKENS_OF_A_CHARACTER, len(ids)) + 1
        )  # an unfinished character counts as one or more
        return next((end for end in ends if self.decode(ids[:end]) == text[:border]), None)


class SpanEncoder:
    """Encodes rendered conversations. Raises DropError("text-mismatch") where the trained tokens do not read
    as the trained text."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def encode(self, text: str, spans: Sequence[tuple[int, int]]) -> Encoded:
        """Ids of `text` and a mask of 1 for the tokens of `spans` (character start and end, ascending, not
        overlapping)."""
        borders = [border for span in spans for border in span]
        ids, cuts = self._backend.encode(text, borders)
        if None in cuts:
            ids, cuts = self._in_pieces(text, borders, cuts)
        mask = bytearray(len(ids))
        for start, end in zip(cuts[::2], cuts[1::2], strict=True):
            if start is None or end is None:
                raise DropError("text-mismatch", "a token straddles the border of a turn")
            mask[start:end] = b"\x01" * (end - start)
        self._check("".join(text[start:end] for start, end in spans), list(compress(ids, mask)))
        return Encoded(ids, bytes(mask))

    def _in_pieces(
        self, text: str, borders: Sequence[int], cuts: Sequence[int | None]
    ) -> tuple[list[int], list[int | None]]:
        """Encode the text apart at each border that a token straddles."""
        ids: list[int] = []
        counts: dict[int, int | None] = {}
        breaks = [
            0,
            *dict.fromkeys(border for border, cut in zip(borders, cuts, strict=True) if cut is None),
            len(text),
        ]
        for start, end in pairwise(breaks):
            inside = [border for border in borders if start <= border <= end]
            piece, places = self._backend.encode(text[start:end], [border - start for border in inside])
            counts |= {
                border: None if place is None else len(ids) + place
                for border, place in zip(inside, places, strict=True)
            }
            ids += piece
        return ids, [counts[border] for border in borders]

    def _check(self, expected: str, trained: list[int]) -> None:
        decoded = self._backend.decode(trained)
        if decoded != expected and _comparable(decoded) != _comparable(expected):
            raise DropError("text-mismatch", "the trained tokens do not decode to the assistant's text")


def _comparable(text: str) -> str:
    """A text as a tokenizer with a normalizer sees it: composed characters, no blank at the ends
    (SentencePiece puts one there, or takes it away)."""
    return unicodedata.normalize("NFC", text).strip(" ")
