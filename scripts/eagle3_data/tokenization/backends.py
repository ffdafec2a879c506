"""What is asked of a tokenizer, of the `tokenizers` library or in Python."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Protocol

MOST_TOKENS_OF_A_CHARACTER = 8

TRIAL = "  Hello,\n\n wörld!  <think> 12345 日本\t"
"""A text with what tokenizers treat in different ways."""


class Backend(Protocol):
    """What is needed of a tokenizer. No method adds or drops special tokens."""

    def encode(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        """Token ids, and for each border (character positions, ascending) the number of tokens before it,
        None if a token straddles it."""

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without borders: faster."""

    def cuts(self, ids: list[int], text: str, borders: Sequence[int]) -> list[int | None] | None:
        """For the ids of a text what `encode` says of the borders; None if that is not known without encoding
        again."""

    def next_token(self, text: str, border: int) -> tuple[int, int] | None:
        """The first token that begins behind a border which a token straddles, and the character with which
        it does; None if that is not known."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of the ids, special tokens written out."""

    def reads(self, ids: Sequence[int], text: str) -> bool:
        """Whether the ids read as the text, letter by letter."""


class _TokenBytes(dict[int, bytes]):
    """What the tokens of a byte-level vocabulary stand for, each looked up once."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._added = {i: str(token) for i, token in tokenizer.get_added_tokens_decoder().items()}
        visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
        others = (byte for byte in range(256) if byte not in visible)
        self._byte_of = {chr(byte): byte for byte in visible}
        self._byte_of |= {chr(256 + number): byte for number, byte in enumerate(others)}

    def __missing__(self, token: int) -> bytes:
        found = self._added[token].encode() if token in self._added else self._of_vocabulary(token)
        self[token] = found
        return found

    def _of_vocabulary(self, token: int) -> bytes:
        """Its bytes; what no text holds if it is not of this kind."""
        try:
            return bytes(self._byte_of[character] for character in self._tokenizer.id_to_token(token))
        except KeyError:
            return b"\xff"


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
        self._bytes: _TokenBytes | None = _TokenBytes(tokenizer)
        if self._space_swallowing or self._joined(self.encode_all([TRIAL])[0]) != TRIAL.encode():
            self._bytes = None  # tokens are not all that there is in a text

    def encode(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        if self._bytes is not None:  # without offsets a tokenizer takes a quarter less time
            ids = self.encode_all([text])[0]
            cuts = self.cuts(ids, text, borders)
            if cuts is not None:
                return ids, cuts
        return self._encode_with_offsets(text, borders)

    def _encode_with_offsets(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        except TypeError:
            text.encode()  # what it really has against a text with half a character: UnicodeEncodeError
            raise
        ids = encoding.ids
        return ids, [self._tokens_before(encoding, ids, border, text) for border in borders]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            "".join(texts).encode()
            raise
        return [encoding.ids for encoding in encodings]

    def cuts(self, ids: list[int], text: str, borders: Sequence[int]) -> list[int | None] | None:
        if not borders:
            return []
        if self._bytes is None:
            return None
        parts = list(map(self._bytes.__getitem__, ids))
        if b"".join(parts) != text.encode():
            return None
        counts = {end: count for count, end in enumerate(accumulate(map(len, parts), initial=0))}
        if text.isascii():
            return list(map(counts.get, borders))
        lengths = (len(text[start:end].encode()) for start, end in pairwise([0, *borders]))
        return list(map(counts.get, accumulate(lengths)))

    def next_token(self, text: str, border: int) -> tuple[int, int] | None:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        for place in range(border, len(text)):
            token = encoding.char_to_token(place)
            if token is not None and encoding.token_to_chars(token)[0] >= border:
                return int(token), int(encoding.token_to_chars(token)[0])
        return None

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))

    def reads(self, ids: Sequence[int], text: str) -> bool:
        return self._joined(ids) == text.encode() or self.decode(ids) == text

    def _joined(self, ids: Sequence[int]) -> bytes | None:
        """What the ids stand for, None if the vocabulary is of another kind."""
        return b"".join(map(self._bytes.__getitem__, ids)) if self._bytes is not None else None

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

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return list(map(self._encode, texts))

    def cuts(self, ids: list[int], text: str, borders: Sequence[int]) -> list[int | None] | None:
        return None

    def next_token(self, text: str, border: int) -> tuple[int, int] | None:
        return None

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, ids: Sequence[int]) -> str:
        options = {
            "skip_special_tokens": False,
            "clean_up_tokenization_spaces": False,
            "spaces_between_special_tokens": False,
        }
        return str(self._tokenizer.decode(list(ids), **options))

    def reads(self, ids: Sequence[int], text: str) -> bool:
        return self.decode(ids) == text

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
