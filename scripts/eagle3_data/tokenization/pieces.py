"""Encoding a text in pieces, and what comes again only once: the beginning that many conversations share, a
system prompt and its tools, and the short pieces of which a chat template's headers are made."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise, product

from eagle3_data.tokenization.backends import Backend

LEAST_CHARACTERS = 1000
"""The first piece from this size on is remembered."""

MOST_CHARACTERS = 200_000
"""Longer texts are encoded whole: tokenizers in Python may cut those by length."""

PREFIXES = 64
SHORT_CHARACTERS, SHORT_PIECES = 40, 4096
"""What is a short piece, and how many of them are remembered."""

RECENT_CHARACTERS = 1 << 16
"""Of the other pieces about this much is remembered: a text may be asked for again, with other borders or cut
at one, and with `train_on: each` one conversation gives many that begin alike."""

TRIALS = ("  Hello,\n\n wörld! 12345 日本\t", "Hello,\n\n wörld! 12345 日本", "\u0338 =x= \n")
"""Texts with a blank, a letter and a character that combines with the one before it at the border."""


class Pieces:
    """A backend that encodes texts in pieces.

    A piece begins with a separator: a special token on whose two sides texts are encoded independently. That
    is checked on trial texts for each separator; those that fail are not used. The ids are those of the
    whole text.
    """

    def __init__(self, backend: Backend, separators: Sequence[str], tokens: Sequence[str] = ()) -> None:
        """`separators`: texts of special tokens, `tokens`: of all added ones."""
        self._backend = backend
        sound = [
            separator
            for separator in separators
            if separator
            and not any(_hides(token, separator) for token in (*separators, *tokens) if token != separator)
            and _separates(backend, separator)
        ]
        self._separator = re.compile("|".join(map(re.escape, sound))) if sound else None
        self._prefix = lru_cache(PREFIXES)(lambda piece: backend.encode_all([piece])[0])
        self._short: dict[str, list[int]] = {}
        self._recent: dict[str, list[int]] = {}
        self._recent_characters = 0
        self._heads: dict[str, list[int]] = {}

    def encode(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        if self._separator is None or len(text) > MOST_CHARACTERS:
            return self._backend.encode(text, borders)
        places = [0, *(found.start() for found in self._separator.finditer(text)), len(text)]
        pieces = [text[start:end] for start, end in pairwise(places)]
        ids: list[int] = []
        cuts: list[int | None] = []
        for end, piece, own in zip(places[1:], pieces, self._ids_of(pieces), strict=True):
            if len(cuts) < len(borders) and borders[len(cuts)] < end:
                start = end - len(piece)
                inside = [border - start for border in borders[len(cuts) :] if border < end]
                own, found = self._cut(piece, own, inside)
                cuts += [None if cut is None else len(ids) + cut for cut in found]
            ids += own
        return ids, cuts + [len(ids)] * (len(borders) - len(cuts))

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return self._backend.encode_all(texts)

    def cuts(self, ids: list[int], text: str, borders: Sequence[int]) -> list[int | None] | None:
        return self._backend.cuts(ids, text, borders)

    def next_token(self, text: str, border: int) -> tuple[int, int] | None:
        return self._backend.next_token(text, border)

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(ids)

    def reads(self, ids: Sequence[int], text: str) -> bool:
        return self._backend.reads(ids, text)

    def _ids_of(self, pieces: Sequence[str]) -> list[list[int]]:
        """The ids of each piece."""
        if self._recent_characters > RECENT_CHARACTERS:
            self._recent.clear()
            self._recent_characters = 0
        found = [self._short.get(piece) or self._recent.get(piece) for piece in pieces]
        first_long = next((at for at, piece in enumerate(pieces) if len(piece) >= LEAST_CHARACTERS), None)
        if first_long is not None:
            found[first_long] = self._prefix(pieces[first_long])
        unknown = [at for at, known in enumerate(found) if known is None]
        for at, ids in zip(unknown, self._backend.encode_all([pieces[at] for at in unknown]), strict=True):
            found[at] = ids
            self._keep(pieces[at], ids)
        return [ids for ids in found if ids is not None]

    def _keep(self, piece: str, ids: list[int]) -> None:
        if len(piece) <= SHORT_CHARACTERS:
            _remember(self._short, piece, ids)
            return
        self._recent_characters += len(piece)
        self._recent[piece] = ids

    def _cut(self, piece: str, ids: list[int], borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        """A piece's ids, and the number of them before each border inside it."""
        if (known := self._backend.cuts(ids, piece, borders)) is not None:
            return ids, known
        cuts = [self._count(piece[:border], ids) for border in borders]
        return (ids, cuts) if None not in cuts else self._backend.encode(piece, borders)

    def _count(self, head: str, ids: list[int]) -> int | None:
        """How many of the first ids make up `head`, None if it is long or they may not do so exactly."""
        if len(head) > SHORT_CHARACTERS:
            return None
        own = self._heads.get(head)
        if own is None:
            own = self._backend.encode_all([head])[0]
            own = own if self._backend.decode(own) == head else []
            _remember(self._heads, head, own)
        count = len(own)
        return count if ids[:count] == own and (own or not head) else None


def _remember(known: dict[str, list[int]], text: str, ids: list[int]) -> None:
    if len(known) == SHORT_PIECES:
        known.clear()
    known[text] = ids


def _hides(token: str, separator: str) -> bool:
    """Whether a text may hold the token where the separator seems to begin."""
    begun = range(1, len(separator))
    return separator in token or any(token.endswith(separator[:length]) for length in begun)


def _separates(backend: Backend, separator: str) -> bool:
    """Whether what stands before the separator may be encoded apart, and it is one token whatever follows."""
    token = backend.encode(separator, [])[0]
    if len(token) != 1 or any(backend.encode(separator + behind, [])[0][:1] != token for behind in TRIALS):
        return False
    return all(
        backend.encode(before, [])[0] + backend.encode(separator + behind, [])[0]
        == backend.encode(before + separator + behind, [])[0]
        for before, behind in product(TRIALS, repeat=2)
    )
