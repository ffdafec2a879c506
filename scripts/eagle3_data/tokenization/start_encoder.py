"""Encoding no more of a very long text than the tokens that are wanted of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from eagle3_data.tokenization.encoder import Encoded, SpanEncoder

CHARACTERS_A_TOKEN = 16
LEAST_CHARACTERS = 1 << 16
FAR = 8
"""A text at least this many times as long as what is encoded first is worth cutting: a tokenizer takes some
200 bytes of memory a character."""


class StartEncoder:
    """Encodes texts of which only the first `length` tokens are wanted.

    Of a very long text only a beginning is encoded, and one that is twice as long: where both give the same
    first `length` tokens, what follows does not change them.
    """

    def __init__(self, encoder: SpanEncoder, length: int) -> None:
        self._encoder = encoder
        self._length = length
        self._characters = max(LEAST_CHARACTERS, CHARACTERS_A_TOKEN * length)

    def encode(self, text: str, spans: Sequence[tuple[int, int]]) -> Encoded:
        """As SpanEncoder.encode, but `cut` if the text continues after the ids, which are then more than
        `length`. Raises DropError."""
        end = self._characters
        if len(text) < FAR * end:
            return self._encoder.encode(text, spans)
        shorter = self._encoder.encode(text[:end], _before(end, spans))
        while 2 * end < len(text):
            end *= 2
            longer = self._encoder.encode(text[:end], _before(end, spans))
            if len(shorter.ids) > self._length and self._start(shorter) == self._start(longer):
                return replace(longer, cut=True)
            shorter = longer
        return self._encoder.encode(text, spans)

    def _start(self, encoded: Encoded) -> tuple[list[int], bytes]:
        return encoded.ids[: self._length], encoded.mask[: self._length]


def _before(end: int, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What of the spans lies before character `end`."""
    return [(start, min(stop, end)) for start, stop in spans if start < end]
