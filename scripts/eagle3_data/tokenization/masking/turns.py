"""Where in a rendered conversation the assistant's own text lies, proved by rendering.

A turn's text is what the model would have generated: from the end of the generation prompt up to and
including the token that stops generation. What finds it in every case, if it can be proved at all, is
rendering:

- incrementally: the conversation before the turn, with the generation prompt, is a prefix of the whole; so
is, for all but
  plain answers, the conversation up to the turn's end;
- by substitution, for templates that write history otherwise: the turn's content is replaced by a mark; if
everything around
  the mark is found around the content in the whole conversation, the content lies between.

That takes a rendering or two a turn. Two shortcuts take none: the template's own `{% generation %}` tags, and
the header that opens the assistant's turns. They are used if, in made-up conversations, they find what
incremental rendering finds.

Whatever the way, the verifier then compares the found text with the message, every time. What cannot be
proved is dropped with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NoReturn

from eagle3_data.tokenization.masking.call_style import Message
from eagle3_data.tokenization.masking.formatted import FormattedTurns
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers, skip_space
from eagle3_data.tokenization.masking.spans import (
    ANSWERED,
    CALLING,
    QUESTION,
    RESULT,
    Span,
    common_prefix_length,
)
from eagle3_data.tokenization.masking.template import ANSWER, MARK, REASONING_MARK, USER, ChatTemplate
from eagle3_data.tokenization.masking.verification import Verifier
from eagle3_data.tokenization.reading.messages import REASONING_FIELDS
from eagle3_data.tokenization.reading.rows import DropError

Tools = list[dict[str, Any]] | None

MADE_UP: tuple[list[Message], ...] = (
    [QUESTION, ANSWERED, QUESTION, {**ANSWERED, "content": "two"}],
    [QUESTION, CALLING, RESULT, ANSWERED],
    [QUESTION, {**ANSWERED, **dict.fromkeys(REASONING_FIELDS, "because")}],
)


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered conversation, and the spans of the wanted turns in order."""

    text: str
    spans: tuple[Span, ...]


class TurnLocator:
    """Finds the assistant's turns in conversations rendered by one template."""

    def __init__(self, template: ChatTemplate, markers: ReasoningMarkers) -> None:
        self._template = template
        self._markers = markers
        self._scaffold_space = self._learn_scaffold_space()
        self._verifier = Verifier(markers, template.lead, template.header)
        shortcuts = {
            self._by_tags: template.has_generation_tags,
            self._by_headers: bool(template.header.strip()),
        }
        self._shortcuts = [find for find, possible in shortcuts.items() if possible and self._agrees(find)]
        self.uses_generation_tags = self._by_tags in self._shortcuts

    def locate(self, messages: Sequence[Message], tools: Tools, wanted: Sequence[int]) -> Rendering:
        """Render `messages` (prepared by the template) and find the turns whose indices are `wanted`. Raises
        DropError.

        A turn of which the template shows nothing, such as one of reasoning that it strips, has no span: its
        end alone is nothing to train.
        """
        text = self._template.render(messages, tools)
        found: dict[int, Span] = {}
        for find in self._shortcuts:
            spans = find(text, messages, tools) if len(found) < len(wanted) else {}
            found = {
                index: span for index, span in spans.items() if self._reads_right(text, span, messages[index])
            } | found
        for index in wanted:
            if index not in found:
                found[index] = self._incremental(text, messages, tools, index)
                if not self._reads_right(text, found[index], messages[index]):
                    raise DropError("text-mismatch", f"turn {index}")
        in_order = tuple(
            span for span in (found[index] for index in wanted) if text[span.start : span.stop].strip()
        )
        if not in_order:
            raise DropError("empty", "the chat template shows nothing of what the assistant says")
        if any(later.start < earlier.end for earlier, later in pairwise(in_order)):
            raise DropError("text-mismatch", "turns overlap")
        return Rendering(text, in_order)

    def locate_in_text(self, text: str) -> Rendering:
        """The turns of a text to which the template has been applied already. Raises DropError, or InputError
        if no text of this template shows them."""
        return Rendering(text, self._formatted.locate(text))

    @cached_property
    def _formatted(self) -> FormattedTurns:
        return FormattedTurns(self._template, self._start_of_answer)

    def _start_of_answer(self, text: str, header_end: int) -> int:
        """Behind the rest of the generation prompt, and behind an empty scaffold."""
        if text.startswith(self._template.header_rest, header_end):
            header_end += len(self._template.header_rest)
        return self._behind_scaffold(text, header_end)

    def _behind_scaffold(self, text: str, start: int) -> int:
        return self._markers.behind_scaffold(text, start, self._scaffold_space)

    def _learn_scaffold_space(self) -> str | None:
        """The white space that the template writes between an empty scaffold and the answer, if it always
        writes the same."""
        openings = [
            self._template.attempt(*messages).partition(MARK)[0]
            for messages in ((USER, ANSWER), (USER, ANSWER, USER))
        ]
        visible = [(opening, opening.rstrip()) for opening in openings]
        found = {
            opening[len(seen) :]
            for opening, seen in visible
            if any(seen.endswith(closing) for _, closing in self._markers.pairs)
        }
        return found.pop() if len(found) == 1 else None

    def says_something(self, message: Message) -> bool:
        """Whether there is anything in an assistant's message to train on."""
        return bool(message.get("tool_calls")) or bool(
            self._markers.without_scaffold((message["content"] or "").strip())
        )

    def _reads_right(self, text: str, span: Span, message: Message) -> bool:
        return self._verifier.reads_right(text[span.start : span.stop], message)

    # Shortcuts

    def _by_tags(self, text: str, messages: Sequence[Message], tools: Tools) -> dict[int, Span]:
        assistants = _assistants(messages)
        tags = self._template.render_tagged(messages, tools)
        if len(tags) != len(assistants):
            return {}
        return {
            index: self._closed_tag(text, start, end)
            for index, (start, end) in zip(assistants, tags, strict=True)
        }

    def _closed_tag(self, text: str, start: int, end: int) -> Span:
        """A tag's text without an empty scaffold. Its stop token may lie at the end inside the tags or right
        behind them."""
        start = self._behind_scaffold(text, start)
        body = text[start:end].rstrip()
        if inside := self._template.stop_at_end(body):
            return Span(start, start + len(body) - len(inside), start + len(body))
        behind = self._template.stop_at(text, end)
        return Span(start, end, end + len(behind))

    def _by_headers(self, text: str, messages: Sequence[Message], tools: Tools) -> dict[int, Span]:
        """Each assistant's turn begins with the same header. If there are as many as turns, and none is part
        of a content, they are theirs."""
        header, assistants = self._template.header, _assistants(messages)
        if text.count(header) != len(assistants) or any(
            header in (message["content"] or "") for message in messages
        ):
            return {}
        spans, position = {}, 0
        for index in assistants:
            start = text.index(header, position) + len(header)
            position = text.find(header, start)
            span = self._behind_header(text, start, position if position >= 0 else len(text), messages[index])
            if span:
                spans[index] = span
        return spans

    def _behind_header(self, text: str, start: int, limit: int, message: Message) -> Span | None:
        start = self._start_of_answer(text, start)
        return self._end_of_plain_answer(text, start, message) or self._end_by_stop(
            text, start, limit, message
        )

    def _agrees(self, find: Callable[[str, Sequence[Message], Tools], dict[int, Span]]) -> bool:
        """Whether a shortcut finds, in made-up conversations, what incremental rendering finds, or leaves it
        to that."""
        compared = 0
        for conversation in MADE_UP:
            try:
                messages = self._template.call_style.prepare(conversation)
                text = self._template.render(messages)
                right = {
                    index: self._incremental(text, messages, None, index) for index in _assistants(messages)
                }
            except DropError:
                continue  # a template that knows no tools, say
            found = find(text, messages, None)
            for index in found.keys() & right.keys():
                if self._reads_right(text, right[index], messages[index]):
                    if found[index] != right[index]:
                        return False
                    compared += 1
        return compared > 0

    # Incremental rendering

    def _incremental(self, text: str, messages: Sequence[Message], tools: Tools, index: int) -> Span:
        try:
            before = self._template.render(messages[:index], tools, generation_prompt=True)
        except DropError:
            before = ""  # many templates cannot render an empty conversation
        start = len(before)
        rewritten = not before or not text.startswith(before)
        if rewritten:
            start = self._substituted(text, messages, tools, index)
            start -= len(self._lead_before(text, start, before, messages[: index + 1], tools))
        start = self._behind_scaffold(text, start)
        if span := self._end_of_plain_answer(text, start, messages[index]):
            return span
        if not rewritten:
            closed = (
                text if index == len(messages) - 1 else self._template.render(messages[: index + 1], tools)
            )
            limit = common_prefix_length(closed, text)
            if span := self._end_by_stop(text, start, limit, messages[index]):
                return span
            if limit == len(closed):  # no stop token is the turn's own; what opens the next one may be one
                return self._ended_behind(text, start, start + len(text[start:limit].rstrip()))
        stop = self._template.find_stop(text, start, len(text))
        return Span(start, *stop) if stop else _unproved(index)

    def _end_of_plain_answer(self, text: str, start: int, message: Message) -> Span | None:
        """The end of a turn whose content stands where it starts, letter by letter, and is all there is to
        it."""
        if message.get("tool_calls"):
            return None
        content = message["content"] or ""
        inline, visible = self._markers.split(content)
        for lead in dict.fromkeys(("", self._template.lead)):
            for answer in dict.fromkeys((content, content.strip(), visible)):
                if answer and text.startswith(lead + answer, start):
                    reasoning = message.get("reasoning_content") or (
                        "" if answer.strip() == content.strip() else inline
                    )
                    if reasoning and self._opens_with(text, start, reasoning.strip()):
                        return None  # reasoning that begins as the answer does
                    return self._ended_behind(text, start, start + len(lead) + len(answer))
        return None

    def _opens_with(self, text: str, start: int, reasoning: str) -> bool:
        position = skip_space(text, start)
        for opening, _ in self._markers.pairs:
            if text.startswith(opening, position):
                position = skip_space(text, position + len(opening))
        return text.startswith(reasoning, position)

    def _ended_behind(self, text: str, start: int, body_end: int) -> Span:
        """The span of a turn whose text ends at `body_end`, with the stop token behind it, if there is
        one."""
        behind = skip_space(text, body_end)
        stop = self._template.stop_at(text, behind)
        return Span(start, body_end, behind + len(stop)) if stop else Span(start, body_end, body_end)

    def _end_by_stop(self, text: str, start: int, limit: int, message: Message) -> Span | None:
        """The end at the first stop token before which the turn reads right: the turn itself may hold the
        text of one."""
        position = start
        while stop := self._template.find_stop(text, position, limit):
            span = Span(start, *stop)
            if self._reads_right(text, span, message):
                return span
            position = span.end
        return None

    # Substitution

    def _substituted(self, text: str, messages: Sequence[Message], tools: Tools, index: int) -> int:
        """Where the turn starts: at its reasoning if the template keeps that, else at its content."""
        message = messages[index]
        reasoning, content = message.get("reasoning_content") or "", (message["content"] or "").strip()
        marked = {
            **message,
            "content": MARK,
            **(dict.fromkeys(REASONING_FIELDS, REASONING_MARK) if reasoning else {}),
        }
        before, found, after = self._template.render(
            [*messages[:index], marked, *messages[index + 1 :]], tools
        ).partition(MARK)
        opening, kept, between = before.partition(REASONING_MARK)
        if found and MARK not in after and REASONING_MARK not in between + after:
            for shown in dict.fromkeys((reasoning, reasoning.strip())) if kept else ("",):
                for answer in dict.fromkeys(
                    (content, self._markers.split(content)[1], self._markers.without_scaffold(content))
                ):
                    written = opening + shown + between + answer
                    if text in (written + after, written + after.lstrip()):
                        return len(opening)
        return _unproved(index)

    def _lead_before(
        self, text: str, start: int, before: str, messages: Sequence[Message], tools: Tools
    ) -> str:
        """What the model itself writes before its content, such as a space, if it stands before `start`: seen
        where the turn comes last."""
        own = self._template.render(messages, tools)
        answer = self._markers.split((messages[-1]["content"] or "").strip())[1]
        if not before or not answer or not own.startswith(before):
            return ""
        lead, found, _ = own[self._behind_scaffold(own, len(before)) :].partition(answer)
        return lead if found and text.endswith(lead, 0, start) else ""


def _assistants(messages: Sequence[Message]) -> list[int]:
    return [index for index, message in enumerate(messages) if message["role"] == "assistant"]


def _unproved(index: int) -> NoReturn:
    raise DropError("history-rewritten", f"turn {index}")
