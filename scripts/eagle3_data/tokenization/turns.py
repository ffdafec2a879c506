"""Where in a rendered conversation the assistant's own text lies, proved by rendering.

A turn's text is what the model would have generated: from the end of the generation prompt up to and including the token
that stops generation. Three ways lead there, in this order:

1. The template marks it with `{% generation %}` tags.
2. Incremental rendering: the conversation before the turn, with the generation prompt, is a prefix of the whole.
3. Substitution, for templates that write history otherwise: the turn's content is replaced by a mark; if everything around
   the mark is found around the content in the whole conversation, the content lies between.

Whatever the way, `verify` then compares the found text with the message. What cannot be proved is dropped with a reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from eagle3_data.tokenization.rows import DropError
from eagle3_data.tokenization.template import MARK, ChatTemplate, Message

Markers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Span:
    """Characters start..stop of a rendering are a turn's generated text, stop..end the token that ends it (empty if there is none)."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True)
class Rendering:
    """A rendered conversation, and the span of each assistant turn that says something, in order."""

    text: str
    spans: tuple[Span, ...]


class TurnLocator:
    """Finds the assistant's turns in conversations rendered by one template."""

    def __init__(self, template: ChatTemplate, reasoning_markers: Markers) -> None:
        self._template = template
        self._markers = reasoning_markers

    def locate(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None, wanted: Sequence[int]) -> Rendering:
        """Render `messages` (prepared by the template) and find the turns whose indices are `wanted`. Raises DropError."""
        text = self._template.render(messages, tools)
        tagged = self._tagged(text, messages, tools) if self._template.has_generation_tags else {}
        spans = []
        for index in wanted:
            span = tagged.get(index)
            if span is None or not self._reads_right(text, span, messages[index]):
                span = self._incremental(text, messages, tools, index)
                if not self._reads_right(text, span, messages[index]):
                    raise DropError("text-mismatch", f"turn {index}")
            spans.append(span)
        for one, next_one in pairwise(spans):
            if next_one.start < one.end:
                raise DropError("text-mismatch", "turns overlap")
        return Rendering(text, tuple(spans))

    def says_something(self, message: Message) -> bool:
        """Whether there is anything in an assistant's message to train on."""
        return bool(message.get("tool_calls")) or bool(self._without_scaffold((message["content"] or "").strip()))

    def _tagged(self, text: str, messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> dict[int, Span]:
        assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        tags = self._template.render_tagged(messages, tools)
        if len(tags) != len(assistants):
            return {}
        return {index: self._close(text, self._skip_scaffold(text, start), end) for index, (start, end) in zip(assistants, tags, strict=True)}

    def _close(self, text: str, start: int, end: int) -> Span:
        """A span from start..end, whose stop token may lie at its end or right behind it."""
        body = text[start:end].rstrip()
        for stop in self._template.stops:
            if body.endswith(stop):
                return Span(start, start + len(body) - len(stop), start + len(body))
        for stop in self._template.stops:
            if text.startswith(stop, end):
                return Span(start, end, end + len(stop))
        return Span(start, end, end)

    def _incremental(self, text: str, messages: Sequence[Message], tools: list[dict[str, Any]] | None, index: int) -> Span:
        try:
            before = self._template.render(messages[:index], tools, generation_prompt=True)
        except DropError:
            before = None  # many templates cannot render an empty conversation
        start = len(before) if before and text.startswith(before) else self._substituted(text, messages, tools, index)
        start = self._skip_scaffold(text, start)
        return self._end(text, messages, tools, index, start)

    def _substituted(self, text: str, messages: Sequence[Message], tools: list[dict[str, Any]] | None, index: int) -> int:
        message = messages[index]
        content = (message["content"] or "").strip()
        marked = [*messages[:index], {**message, "content": MARK}, *messages[index + 1 :]]
        before, mark, after = self._template.render(marked, tools).partition(MARK)
        if not mark or MARK in after:
            raise DropError("history-rewritten", f"turn {index}")
        for answer in dict.fromkeys((content, self._answer(content), self._without_scaffold(content))):
            for tail in dict.fromkeys((after, after.lstrip())):
                if before + answer + tail == text:
                    return len(before)
        raise DropError("history-rewritten", f"turn {index}")

    def _end(self, text: str, messages: Sequence[Message], tools: list[dict[str, Any]] | None, index: int, start: int) -> Span:
        """Where the turn that starts at `start` ends: directly behind its content, or as a rendering that ends with the turn shows."""
        message = messages[index]
        content = message["content"] or ""
        if not message.get("tool_calls"):
            for lead in dict.fromkeys(("", self._template.lead)):
                for answer in dict.fromkeys((content, content.strip())):
                    if answer and text.startswith(lead + answer, start):
                        return self._behind(text, start, start + len(lead) + len(answer))
        closed = text if index == len(messages) - 1 else self._template.render(messages[: index + 1], tools)
        limit = _common_prefix(closed, text)
        anchor = self._last_piece(text, start, limit, message)
        stop = self._template.find_stop(text, anchor, limit)
        if stop is not None:
            return Span(start, *stop)
        if limit == len(closed):
            return Span(start, len(closed.rstrip()), len(closed.rstrip()))
        raise DropError("history-rewritten", f"turn {index}: its end is not stable")

    def _behind(self, text: str, start: int, body_end: int) -> Span:
        position = body_end
        while position < len(text) and text[position].isspace():
            position += 1
        for stop in self._template.stops:
            if text.startswith(stop, position):
                return Span(start, body_end, position + len(stop))
        return Span(start, body_end, body_end)

    def _last_piece(self, text: str, start: int, limit: int, message: Message) -> int:
        """A position in the turn behind its answer and the names of its tool calls, in front of its end."""
        position = start
        pieces = [self._answer((message["content"] or "").strip()), *(call["function"]["name"] for call in message.get("tool_calls", ()))]
        for piece in pieces:
            found = text.find(piece, position, limit)
            if found < 0:
                raise DropError("history-rewritten", "the turn's text is not in its rendering")
            position = found + len(piece)
        return position

    def _skip_scaffold(self, text: str, start: int) -> int:
        """Behind an empty reasoning scaffold at `start`, also one whose opening belongs to the generation prompt."""
        for opening, closing in self._markers:
            position = start
            if text.startswith(opening, start):
                position += len(opening)
            elif not text[max(0, start - len(opening) - 8) : start].rstrip().endswith(opening):
                continue
            position = _skip_space(text, position)
            if text.startswith(closing, position):
                return _skip_space(text, position + len(closing))
        return start

    def _without_scaffold(self, content: str) -> str:
        return content[self._skip_scaffold(content, 0) :]

    def _answer(self, content: str) -> str:
        """Content behind its inline reasoning, as templates that strip reasoning keep it."""
        for _, closing in self._markers:
            content = content.rpartition(closing)[2]
        return content.strip()

    def _reads_right(self, text: str, span: Span, message: Message) -> bool:
        """Whether the span holds the message: its answer, reasoning and calls, and nothing else but the template's own syntax."""
        body = text[span.start : span.stop].strip()
        content = self._without_scaffold((message["content"] or "").strip())
        calls = message.get("tool_calls", ())
        if calls:
            return _in_order(body, self._answer(content), *(piece for call in calls for piece in _call_pieces(body, call)))
        leads = ("", self._template.lead.strip())
        if any(body == lead + answer for answer in (content, self._answer(content)) for lead in leads):
            return True
        reasoning = (message.get("reasoning_content") or "").strip() or self._inline_reasoning(content)
        return bool(reasoning) and body.endswith(self._answer(content)) and _in_order(body, reasoning, self._answer(content))

    def _inline_reasoning(self, content: str) -> str:
        for opening, closing in self._markers:
            if closing in content:
                return content.rpartition(closing)[0].removeprefix(opening).strip()
        return ""


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _common_prefix(one: str, other: str) -> int:
    """Length of the common prefix, by bisection: comparing slices is far faster than comparing characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _in_order(body: str, *pieces: str) -> bool:
    position = 0
    for piece in pieces:
        found = body.find(piece, position)
        if found < 0:
            return False
        position = found + len(piece)
    return True


def _call_pieces(body: str, call: dict[str, Any]) -> Iterator[str]:
    """A tool call's name and then its arguments, in the form in which they stand in the text."""
    yield call["function"]["name"]
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        yield arguments
        return
    for leaf in _leaves(arguments):
        written = leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)
        forms = (json.dumps(written, ensure_ascii=False)[1:-1], json.dumps(written)[1:-1], written.strip(), str(leaf))
        yield next((form for form in forms if form in body), forms[0])


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value
