"""Text with marked spans to token ids and a loss mask, such that a trained token is never partly prompt.

A token that straddles the border of a span (a prompt that ends in a line feed before an answer that starts
with one) would be trained for characters that the assistant did not write. There the text is encoded in
pieces: the prompt, then the answer, which is also how an engine sees them when it generates. Everywhere
else the ids are those of the whole text. Where a tokenizer cannot encode a piece as a part of the whole,
the ids stay those of the whole and the token across the border is not trained.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise

from eagle3_data.tokenization.backends import Backend
from eagle3_data.tokenization.reading.rows import DropError

BEFORE_A_PIECE, PIECES = "Hello, 1\n", ("World 2", "(a) b")
"""Texts that no tokenizer merges, with which it is tried whether it encodes a piece as a part of the
whole."""

AROUND = 40
"""Characters of an expected and a found text that a message shows."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids [T] and their loss mask [T] of 0 and 1.

    `faults`: numbers of the spans that are not trained since their tokens do not read as their text, and why.
    `cut`: the text has further tokens, which are not wanted.
    """

    ids: list[int]
    mask: bytes
    faults: Mapping[int, DropError] = field(default_factory=dict)
    cut: bool = False


class SpanEncoder:
    """Encodes rendered conversations."""

    def __init__(self, backend: Backend, anchors: Sequence[str] = ()) -> None:
        """`anchors`: texts of special tokens. Behind one of them a piece is encoded where the tokenizer
        would put a blank before it otherwise."""
        self._backend = backend
        self._anchor = next(
            (
                anchor
                for anchor in ("", *anchors)
                if all(_continues(backend, anchor, piece) for piece in PIECES)
            ),
            None,
        )

    def encode(self, text: str, spans: Sequence[tuple[int, int]]) -> Encoded:
        """Ids of `text` and a mask of 1 for the tokens of `spans` (character start and end, ascending, not
        overlapping)."""
        borders = [border for span in spans for border in span]
        ids, cuts = self._backend.encode(text, borders)
        if None in cuts:
            borders, cuts = self._with_space(text, spans)
            if None in cuts and self._anchor is not None:
                ids, cuts = self._in_pieces(text, borders, cuts)
        mask = bytearray(len(ids))
        faults: dict[int, DropError] = {}
        bounds: list[tuple[int, int]] = []
        for number, (start, end) in enumerate(spans):
            first, last = cuts[2 * number], cuts[2 * number + 1]
            try:
                if first is None:
                    first, start = self._behind(text, start, end)
                if last is None:
                    raise DropError("token-mismatch", "a token lies across the end of the turn")
                bounds.append((first, last))
            except DropError as fault:
                faults[number] = fault
                bounds.append((0, 0))
        if not self._reads_right(text, spans, ids, bounds):
            for number, ((start, end), (first, last)) in enumerate(zip(spans, bounds, strict=True)):
                if number not in faults and (wrong := self._difference(text[start:end], ids[first:last])):
                    faults[number] = wrong
        for number, (first, last) in enumerate(bounds):
            if number not in faults:
                mask[first:last] = b"\x01" * (last - first)
        return Encoded(ids, bytes(mask), faults)

    def _with_space(self, text: str, spans: Sequence[tuple[int, int]]) -> tuple[list[int], list[int | None]]:
        """Borders of the spans, and the number of tokens before each. A token across the end of a turn may
        hold white space: it is trained, or else that is not."""
        ends = [(end, skip_space(text, end), start + len(text[start:end].rstrip())) for start, end in spans]
        asked = sorted(
            {border for span, choice in zip(spans, ends, strict=True) for border in (*span, *choice)}
        )
        cut_at = dict(zip(asked, self._backend.encode(text, asked)[1], strict=True))
        borders: list[int] = []
        for (start, end), choice in zip(spans, ends, strict=True):
            borders += start, next((border for border in choice if cut_at[border] is not None), end)
        return borders, [cut_at[border] for border in borders]

    def _reads_right(
        self,
        text: str,
        spans: Sequence[tuple[int, int]],
        ids: list[int],
        bounds: Sequence[tuple[int, int]],
    ) -> bool:
        """Whether the tokens of all spans together read as their texts, letter by letter: mostly, and told
        faster than for each."""
        trained = list(chain.from_iterable(ids[first:last] for first, last in bounds))
        return self._backend.reads(trained, "".join(text[start:end] for start, end in spans))

    def _behind(self, text: str, start: int, end: int) -> tuple[int, int]:
        """The first token wholly inside a span, and its first character."""
        found = self._backend.next_token(text, start)
        if found is None or found[1] >= end:
            raise DropError("token-mismatch", "a token lies across the beginning of the turn")
        return found

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
            anchor = (self._anchor or "") if start else ""
            piece, places = encode_behind(
                self._backend, anchor, text[start:end], [border - start for border in inside]
            )
            counts |= {
                border: None if place is None else len(ids) + place
                for border, place in zip(inside, places, strict=True)
            }
            ids += piece
        return ids, [counts[border] for border in borders]

    def _difference(self, expected: str, trained: list[int]) -> DropError | None:
        """What is wrong if the tokens do not read as the text."""
        decoded = self._backend.decode(trained)
        if decoded == expected or (one := _comparable(decoded)) == (other := _comparable(expected)):
            return None
        place = max(0, common_prefix_length(one, other) - AROUND // 2)
        text, tokens = other[place : place + AROUND], one[place : place + AROUND]
        return DropError("token-mismatch", f"the text is {text!r}, its tokens read {tokens!r}")


def encode_behind(
    backend: Backend, anchor: str, text: str, borders: Sequence[int]
) -> tuple[list[int], list[int | None]]:
    """Ids of `text` as they are behind `anchor`, and the number of them before each border."""
    if not anchor:
        return backend.encode(text, borders)
    length = len(anchor)
    ids, cuts = backend.encode(anchor + text, [length, *(border + length for border in borders)])
    first = cuts[0]
    if first is None:
        raise DropError("token-mismatch", f"the token {anchor} merges with the text behind it")
    return ids[first:], [None if cut is None else cut - first for cut in cuts[1:]]


def _continues(backend: Backend, anchor: str, piece: str) -> bool:
    """Whether a piece encoded behind `anchor` continues a text as it does when encoded with it."""
    try:
        behind = encode_behind(backend, anchor, piece, [])[0]
    except DropError:
        return False
    return backend.encode(BEFORE_A_PIECE + piece, [])[0] == backend.encode(BEFORE_A_PIECE, [])[0] + behind


def skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def common_prefix_length(one: str, other: str) -> int:
    """By bisection: comparing slices is far faster than comparing characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _comparable(text: str) -> str:
    """A text as a tokenizer with a normalizer sees it: composed characters, no white space at the ends
    (SentencePiece puts a blank there, or takes it away; some special tokens swallow it)."""
    return unicodedata.normalize("NFC", text).strip()
