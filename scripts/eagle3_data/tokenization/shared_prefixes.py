"""Encoding the beginning that many conversations share, a system prompt and its tools, only once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import product

from eagle3_data.tokenization.encoder import Backend, encode_behind
from eagle3_data.tokenization.reading.rows import DropError

LEAST_CHARACTERS = 1000
MOST_CHARACTERS = 200_000
PREFIXES = 64
TRIAL = "  Hello,\n\n wörld! 12345 日本\t"


class SharedPrefixes:
    """A backend that remembers the ids of long prefixes.

    A prefix ends behind a separator: a special token on whose two sides texts are encoded independently. That
    is checked on a trial text for each separator; those that fail are not used. The ids are those of the
    whole text.
    """

    def __init__(self, backend: Backend, separators: Sequence[str]) -> None:
        """`separators`: texts of special tokens."""
        self._backend = backend
        sound = [separator for separator in separators if separator and _separates(backend, separator)]
        self._separator = re.compile("|".join(map(re.escape, sound))) if sound else None
        self._prefix_ids = lru_cache(PREFIXES)(lambda prefix: tuple(backend.encode(prefix, [])[0]))

    def encode(self, text: str, borders: Sequence[int]) -> tuple[list[int], list[int | None]]:
        found = self._separator.search(text, LEAST_CHARACTERS, MOST_CHARACTERS) if self._separator else None
        if not found or (borders and borders[0] < found.end()):
            return self._backend.encode(text, borders)
        end = found.end()
        prefix = self._prefix_ids(text[:end])
        # behind the separator once more: at the beginning of a text some tokenizers put a blank
        ids, cuts = encode_behind(self._backend, found[0], text[end:], [border - end for border in borders])
        return [*prefix, *ids], [None if cut is None else cut + len(prefix) for cut in cuts]

    def next_token(self, text: str, border: int) -> tuple[int, int] | None:
        return self._backend.next_token(text, border)

    def decode(self, ids: Sequence[int]) -> str:
        return self._backend.decode(ids)


def _separates(backend: Backend, separator: str) -> bool:
    """Whether what stands before and behind the separator may be encoded apart, with and without blanks at
    the borders."""
    try:
        return all(
            backend.encode(before + separator, [])[0] + encode_behind(backend, separator, behind, [])[0]
            == backend.encode(before + separator + behind, [])[0]
            for before, behind in product((TRIAL, TRIAL.strip()), repeat=2)
        )
    except DropError:
        return False
