"""Private characters in place of a few of the messages' own: the rendered text then shows who wrote what.

The first and the last letter of each piece of a message (its content, reasoning, the names, ids and
arguments of its calls) are replaced by characters of Unicode's private use areas, each used once. Wherever
such a character comes out of the chat template, that letter of that message stands there. Letters, so that
no form of quoting changes them; one for one, so that a place in the marked rendering is the same place in
the real one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, filterfalse
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data.records import JsonObject
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers
from eagle3_data.tokenization.reading.messages import REASONING_FIELDS

Message = JsonObject

PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")
"""The private use areas. What of them the conversation itself holds is not used as a mark."""

CODE_POINTS = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))

ESCAPED = re.compile(r"\\u([ef][0-9a-f]{3})")
"""A mark as JSON restricted to ASCII writes it."""

OPENS_SYNTAX, CLOSES_SYNTAX = r"<\[{|/\\`&%_$#@\u25c1\u3008", r">\]}|/`;%_\u25b7\u3009"
"""Characters beside a word that may make it a tag, a switch or an escape, which templates look for."""

LETTER = r"[^\W_]"
FIRST = re.compile(f"(?<!{LETTER})(?<![{OPENS_SYNTAX}]){LETTER}")
LAST_WORD = re.compile(f"(?<!{LETTER})(?<![{OPENS_SYNTAX}]){LETTER}+(?!{LETTER})(?![{CLOSES_SYNTAX}])")
"""Where marks stand best: the first letter of a word and the last one of another, which are not syntax."""

BACKWARDS = re.compile(f"(?<![{CLOSES_SYNTAX}])(?<!{LETTER}){LETTER}+(?!{LETTER})(?![{OPENS_SYNTAX}])")
"""LAST_WORD in a text that is read from its end."""

REACH = 80
"""Characters at the end of a text in which its last word is looked for first."""

JSON_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"(?!\s*:)', re.DOTALL)

CONTENT, REASONING, NAME, IDENTITY, ARGUMENT = "content", "reasoning", "name", "id", "argument"
"""Kinds of pieces. Reasoning may be a field of its own or part of the content."""


@dataclass(slots=True)
class Piece:
    """A text of message `index`, and the places [first, last] in it where its marks stand. `call` counts the
    message's calls. Not frozen, as are none of the objects made for each mark: that takes five times as
    long."""

    index: int
    kind: str
    text: str
    first: int
    last: int
    call: int = 0


@dataclass(slots=True)
class Found:
    """A mark at `position` of a rendering: the first or the last of its piece, or both."""

    position: int
    piece: Piece
    is_first: bool
    is_last: bool


@dataclass(frozen=True)
class Depth:
    """How much of a call is marked: a template may look at a function's name or arguments."""

    names: bool
    arguments: bool


DEPTHS = (Depth(True, True), Depth(False, True), Depth(False, False))


class Marks:
    """The marks of one conversation."""

    def __init__(
        self, messages: Sequence[Message], markers: ReasoningMarkers, text: str, depth: Depth
    ) -> None:
        """`text` is the real rendering."""
        taken = set() if text.isascii() else set(PRIVATE.findall(text))
        self._free = filterfalse(taken.__contains__, map(chr, chain(*CODE_POINTS)))
        self._markers = markers
        self._depth = depth
        self._of: dict[str, tuple[Piece, bool, bool]] = {}
        self._identities: dict[str, str] = {}
        self.pieces: list[list[Piece]] = [[] for _ in messages]
        self.messages = [self._marked(index, message) for index, message in enumerate(messages)]

    def read(self, marked: str, text: str) -> list[Found] | None:
        """The marks in the marked rendering, in order; None if it is not `text` but for them."""
        if "\\u" in marked:
            marked = ESCAPED.sub(
                lambda found: chr(int(found[1], 16)) if chr(int(found[1], 16)) in self._of else found[0],
                marked,
            )
        if len(marked) != len(text):
            return None
        found: list[Found] = []
        for position in np.flatnonzero(_code_points(marked) != _code_points(text)).tolist():
            owned = self._of.get(marked[position])
            if owned is None:
                return None
            piece, is_first, is_last = owned
            if piece.text[piece.first if is_first else piece.last] != text[position]:
                return None
            found.append(Found(position, piece, is_first, is_last))
        return found

    def _marked(self, index: int, message: Message) -> Message:
        marked = dict(message)
        is_assistant = message["role"] == "assistant"
        content = message.get("content")
        if isinstance(content, str):
            marked["content"] = self._content(index, content, is_assistant)
        elif isinstance(content, list):
            marked["content"] = [
                {**part, "text": self._content(index, part["text"], is_assistant)} if "text" in part else part
                for part in content
            ]
        fields = [name for name in REASONING_FIELDS if message.get(name)]
        if fields:
            marked |= dict.fromkeys(fields, self._put(index, REASONING, message[fields[0]]))
        if message.get("tool_calls"):
            marked["tool_calls"] = [
                self._call(index, number, call) for number, call in enumerate(message["tool_calls"])
            ]
        if self._depth.names and message.get("tool_call_id"):
            identity = message["tool_call_id"]
            marked["tool_call_id"] = self._identities.get(identity, identity)
        return marked

    def _content(self, index: int, content: str, is_assistant: bool) -> str:
        """Content marked; where an assistant's holds reasoning, that and the answer apart."""
        if is_assistant:
            for opening, closing in self._markers.pairs:
                before, found, answer = content.rpartition(closing)
                if found:
                    head, opened, reasoning = before.partition(opening)
                    if head.strip():
                        head, opened, reasoning = "", "", before
                    if self._markers.without_markers(reasoning).strip():
                        reasoning = self._put(index, REASONING, reasoning)
                    return head + opened + reasoning + closing + self._put(index, CONTENT, answer)
        return self._put(index, CONTENT, content)

    def _call(self, index: int, number: int, call: JsonObject) -> JsonObject:
        function = call["function"]
        if self._depth.names:
            identity = call.get("id")
            if identity:
                self._identities[identity] = self._put(index, IDENTITY, identity, number)
                call = {**call, "id": self._identities[identity]}
            function = {**function, "name": self._put(index, NAME, function["name"], number)}
        if self._depth.arguments:
            function = {**function, "arguments": self._value(index, number, function["arguments"])}
        return {**call, "function": function}

    def _value(self, index: int, number: int, value: Any, *, is_json: bool = True) -> Any:
        if isinstance(value, dict):
            return {name: self._value(index, number, inner, is_json=False) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._value(index, number, inner, is_json=False) for inner in value]
        if not isinstance(value, str):
            return value
        if is_json:
            return JSON_TEXT.sub(lambda found: f'"{self._put(index, ARGUMENT, found[1], number)}"', value)
        return self._put(index, ARGUMENT, value, number)

    def _put(self, index: int, kind: str, text: str, call: int = 0) -> str:
        """`text` with its marks, as it is if it has no place for one."""
        first = _first_place(text, kind == CONTENT)
        if first < 0:
            return text
        last = max(_last_place(text), first)
        piece = Piece(index, kind, text, first, last, call)
        self.pieces[index].append(piece)
        mark = next(self._free)
        self._of[mark] = (piece, True, first == last)
        if first == last:
            return text[:first] + mark + text[first + 1 :]
        end = next(self._free)
        self._of[end] = (piece, False, True)
        return text[:first] + mark + text[first + 1 : last] + end + text[last + 1 :]


def _code_points(text: str) -> NDArray[np.uint32]:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")


def _first_place(text: str, is_whole: bool) -> int:
    """Where the first mark stands, -1 if nowhere; anywhere, if nothing is quoted in a whole text."""
    if found := FIRST.search(text):
        return found.start()
    free = (place for place, character in enumerate(text) if _is_free(text, place, character))
    visible = (place for place, character in enumerate(text) if is_whole and not character.isspace())
    return next(chain(free, visible), -1)


def _last_place(text: str) -> int:
    """Where the last mark stands, -1 if nowhere."""
    backwards = text[: -REACH - 1 : -1]
    found = BACKWARDS.search(backwards)
    if found and (found.end() < REACH or len(text) <= REACH):  # what is before it has been seen
        return len(text) - 1 - found.start()
    last = -1
    for found in LAST_WORD.finditer(text):
        last = found.end() - 1
    if last >= 0:
        return last
    return next((place for place in range(len(text) - 1, -1, -1) if _is_free(text, place, text[place])), -1)


def _is_free(text: str, place: int, character: str) -> bool:
    """Whether a character that is not a letter may be replaced: visible, and not used for quoting or
    syntax."""
    return (
        character.isprintable()
        and not character.isspace()
        and character not in "\"'\\<>{}[]|/&`"
        and (place == 0 or text[place - 1] != "\\")
    )


def shown_text(text: str, found: Found, end: Found) -> bool:
    """Whether all of a piece between its two marks stands in the rendering letter by letter."""
    piece = found.piece
    return text[found.position + 1 : end.position] == piece.text[piece.first + 1 : piece.last]


def edge_before(text: str, found: Found, floor: int) -> int:
    """Where the visible text of the piece begins of which `found` is the first mark, not before `floor`."""
    lead = found.piece.text[: found.piece.first].lstrip()
    if not lead:
        return found.position
    return found.position - _common(
        lambda length: text.endswith(lead[len(lead) - length :], floor, found.position),
        min(len(lead), found.position - floor),
    )


def edge_behind(text: str, found: Found) -> int:
    """Where the piece ends of which `found` is a mark."""
    piece, start = found.piece, found.position + 1
    rest = piece.text[(piece.last if found.is_last else piece.first) + 1 :]
    if text.startswith(rest, start):  # nearly always
        return start + len(rest)
    return start + _common(lambda length: text.startswith(rest[:length], start), len(rest))


def _common(agrees: Callable[[int], bool], most: int) -> int:
    """The largest length up to `most` that agrees, where each shorter one does, too."""
    if agrees(most):
        return most
    low, high = 0, most - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if agrees(middle) else (low, middle - 1)
    return low
