"""The assistant's turns in a text to which the chat template has been applied already.

Such a text does not say who wrote what; only the template's own syntax does. Made-up conversations teach what
opens the turns of each speaker and what closes them. A turn is the assistant's if its header stands where a
turn may begin, and it ends with its end token, behind which nothing but the next turn follows. Where the
template has no end token, it ends where another speaker's turn opens exactly as the template opens it.
Whatever fits neither is no guess but a reason to drop the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NoReturn

from eagle3_data.errors import InputError
from eagle3_data.tokenization.masking.call_style import NAME, VALID_IDENTITY, Message
from eagle3_data.tokenization.masking.reasoning import skip_space
from eagle3_data.tokenization.masking.spans import CALLING, Span, common_prefix_length
from eagle3_data.tokenization.masking.template import (
    ANSWER,
    MARK,
    NEXT_MARK,
    REASONING_MARK,
    USER,
    ChatTemplate,
)
from eagle3_data.tokenization.reading.messages import REASONING_FIELDS
from eagle3_data.tokenization.reading.rows import DropError

REACH = 256
"""Characters before a header in which the end of the turn before it is looked for: more than any template's
closing is long."""

NAMED = r"[^\n<]{1,64}?"
"""Matches a speaker's name or the id of a call, where an opening has one."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What opens a turn. `marker` is the part of it that is looked for, `offset` where that lies in it,
    `pattern` matches all of it."""

    marker: str
    offset: int
    pattern: re.Pattern[str]

    def match(self, text: str, position: int) -> tuple[int, int] | None:
        """The span of the opening whose marker stands at `position` of `text`, if it is there."""
        start = position - self.offset
        found = self.pattern.match(text, start) if start >= 0 else None
        return found.span() if found else None


class FormattedTurns:
    """Finds the assistant's turns in formatted texts of one template."""

    def __init__(self, template: ChatTemplate, start_of_answer: Callable[[str, int], int]) -> None:
        """`start_of_answer` tells from the end of a header where the answer behind it begins.

        Raises InputError if the template does not say where a turn begins or ends.
        """
        self._template = template
        self._start_of_answer = start_of_answer
        if not template.header.strip():
            raise InputError(
                "the chat template has no text that opens every turn of the assistant, so turns cannot be"
                " found in a text; set the source's `trained: all`"
            )
        opened = template.header + template.lead
        self._lead = opened[start_of_answer(opened, len(template.header)) :]
        self._ending = template.attempt(USER, ANSWER).partition(MARK)[2]
        openings, self._closing = self._learn_openings()
        self._has_end_token = bool(template.stop_at(self._closing, skip_space(self._closing, 0)))
        if not self._has_end_token and not all(self._opening(text).marker for text in openings):
            raise InputError(
                "the chat template closes no turn of the assistant, and what follows one may be opened by"
                " nothing, so turns' ends cannot be found in a text; set the source's `trained: all`"
            )
        self._header = self._opening(template.header)
        self._openings = [
            self._opening(text) for text in dict.fromkeys(openings) if self._opening(text).marker
        ]
        markers = sorted(
            {self._header.marker, *(opening.marker for opening in self._openings)}, key=len, reverse=True
        )
        self._marker = re.compile("|".join(map(re.escape, markers)))
        self._preambles = [self._opening(text) for text in dict.fromkeys(self._learn_preambles())]
        self._closings = tuple(dict.fromkeys(self._learn_closings()))
        call = template.attempt(*template.call_style.prepare([USER, CALLING])).rpartition(template.header)[2]
        call_end = template.find_stop(call, 0, len(call))
        self._closers = (
            {*template.closers, *([call[slice(*call_end)]] if call_end else ())}
            if template.closers
            else set()
        )
        self._behind_header = reduce(_common_prefix, self._learn_answers()) if "" in self._closings else ""
        harmless = [re.escape(stop) for stop in template.stops if stop not in self._closers]
        self._nothing = re.compile("|".join((r"\s", *harmless)) if harmless else r"\s")

    def locate(self, text: str) -> tuple[Span, ...]:
        """The turns in which the assistant says something, in order. Raises DropError("unclear-turn") where
        one cannot be told for certain."""
        spans = []
        markers = [found.start() for found in self._marker.finditer(text)]
        behind = 0
        for position, following in zip(markers, [*markers, None][1:], strict=True):
            if position < behind:
                continue  # a part of the opening before it
            if header := self._header.match(text, position):
                start, behind = header
                if not self._may_begin(text, start):
                    _unclear(text, start, "the assistant's header stands inside another turn")
                if not text.startswith(self._behind_header, behind):
                    _unclear(
                        text,
                        start,
                        "the assistant's header is followed by what the chat template never writes there",
                    )
                behind = self._start_of_answer(text, behind)
                spans.append(
                    self._last(text, behind) if following is None else self._inner(text, behind, following)
                )
            elif opened := next(
                filter(
                    None, (opening.match(text, position) for opening in (*self._openings, *self._preambles))
                ),
                None,
            ):
                behind = opened[1]
            else:
                _unclear(text, position, "a turn is opened as the chat template opens none")
        return tuple(span for span in spans if self._says_something(text, span))

    def _says_something(self, text: str, span: Span) -> bool:
        """Whether there is more than what the template writes before every answer, and empty scaffolds."""
        position = span.start + len(self._lead) * text.startswith(self._lead, span.start)
        while (further := self._start_of_answer(text, position)) > position:
            position = further
        return bool(text[position : span.stop].strip())

    def _may_begin(self, text: str, start: int) -> bool:
        """Whether what stands before `start` closes a turn, or is at most a BOS token."""
        before = text[max(0, start - REACH) : start]
        if any(
            before.rstrip().endswith(closing) if closing.strip() else before.endswith(closing)
            for closing in self._closings
        ):
            return True
        return text[:start].strip() in ("", *self._template.added_tokens)

    def _inner(self, text: str, start: int, following: int) -> Span:
        """A turn before another whose marker stands at `following`."""
        stop = self._template.find_stop(text, start, following)
        if stop and self._has_end_token:
            return self._stopped(text, start, stop, following)
        if self._has_end_token:
            _unclear(text, start, "a turn of the assistant has no end token")
        if stop:
            _unclear(
                text, start, "a turn of the assistant holds an end token, and the chat template writes none"
            )
        ends = [found[0] for opening in self._openings if (found := opening.match(text, following))]
        if self._header.match(text, following) or not ends:
            _unclear(text, start, "a turn of the assistant does not end where another speaker's begins")
        end = min(ends)
        body_end = end - len(self._closing)
        if body_end < start or not text.startswith(self._closing, body_end):
            _unclear(text, start, "a turn of the assistant does not end as the chat template ends one")
        behind = skip_space(text, body_end)
        stop_text = self._template.stop_at(
            text, behind
        )  # some models stop with the token that opens the next turn
        return (
            Span(start, body_end, behind + len(stop_text)) if stop_text else Span(start, body_end, body_end)
        )

    def _last(self, text: str, start: int) -> Span:
        """The last turn: to its end token, else to the end of a text that stops inside it, without what the
        template alone may have written."""
        if stop := self._template.find_stop(text, start, len(text)):
            return self._stopped(text, start, stop, len(text))
        end = len(text)
        if self._ending:
            whole = text.endswith(self._ending) and end - len(self._ending) >= start
            end = end - len(self._ending) if whole else max(start, len(text.rstrip()))
        return Span(start, end, end)

    def _stopped(self, text: str, start: int, stop: tuple[int, int], limit: int) -> Span:
        """A turn with an end token. It is the turn's own, and not of its text, if it is one that closes turns
        and nothing follows it."""
        position = stop[1]
        if not self._closers and text[position:limit] in ("", self._ending):
            return Span(start, *stop)
        if text[stop[0] : position] not in self._closers:
            _unclear(text, start, "a turn of the assistant holds a token that ends none in the chat template")
        while position < limit:
            found = self._nothing.match(text, position, limit)
            if not found:
                _unclear(
                    text,
                    start,
                    "behind the end token of a turn of the assistant stands more than the next turn",
                )
            position = found.end()
        return Span(start, *stop)

    # What made-up conversations teach

    def _opening(self, text: str) -> Opening:
        """An opening is told by the added token with which it begins, unless answers have that, too; else by
        its visible text up to a name."""
        visible = re.split(f"{NAME}|{VALID_IDENTITY}", text)[0].strip()
        of_answers = self._template.lead + self._template.header_rest
        tokens = [
            token
            for token in self._template.added_tokens
            if token and visible.startswith(token) and token not in of_answers
        ]
        marker = max(tokens, key=len, default=visible)
        pattern = re.compile(re.escape(text).replace(NAME, NAMED).replace(VALID_IDENTITY, NAMED))
        return Opening(marker, text.index(marker), pattern)

    def _learn_answers(self) -> Iterator[str]:
        """What stands behind the assistant's header, for turns of several kinds."""
        reasoned: Message = {**ANSWER, **dict.fromkeys(REASONING_FIELDS, REASONING_MARK)}
        calling = self._template.call_style.prepare([USER, CALLING])
        for messages in ([USER, ANSWER], [USER, ANSWER, USER], [USER, reasoned], calling):
            _, found, behind = self._template.attempt(*messages).partition(self._template.header)
            if found:
                yield re.split(f"{MARK}|{REASONING_MARK}", behind)[0]
        if self._template.header_rest:
            yield self._template.header_rest

    def _learn_openings(self) -> tuple[list[str], str]:
        """What opens turns of each other speaker behind an answer, empty if nothing visible does; and what
        closes the answer."""
        gaps = {role: gaps for role in ("user", "system", "tool") if (gaps := list(self._gaps(role)))}
        closing = self._closing_in(gaps["user"][0]) if "user" in gaps else ""
        return [gap.removeprefix(closing) for texts in gaps.values() for gap in texts], closing

    def _gaps(self, role: str) -> Iterator[str]:
        """What stands between an answer and a message of this role, without and with a name. Nothing if the
        template shows no such message."""
        calling = self._template.call_style.prepare([USER, CALLING])
        for named in ({}, {"name": NAME}):
            message: Message = {
                "role": role,
                "content": NEXT_MARK,
                **named,
                **({"tool_call_id": VALID_IDENTITY} if role == "tool" else {}),
            }
            before, found, _ = self._template.attempt(USER, ANSWER, message).partition(NEXT_MARK)
            if found:
                yield before.partition(MARK)[2]
            elif role == "tool":  # refused without a call before it
                closed, (before, found, _) = (
                    self._template.attempt(*calling),
                    self._template.attempt(*calling, message).partition(NEXT_MARK),
                )
                if found:
                    yield (
                        self._closing_in(before[len(closed) :]) + before[len(closed) :]
                        if before.startswith(closed)
                        else ""
                    )

    def _learn_preambles(self) -> Iterator[str]:
        """What opens turns that stand only at the beginning, such as the template's own system prompt: a
        marker, and up to a token or line feed."""
        ends = "|".join(map(re.escape, (*filter(None, self._template.added_tokens), "\n")))
        question, system = {**USER, "content": NEXT_MARK}, {"role": "system", "content": MARK}
        for messages in ([question], [system, question]):
            for found in re.finditer(
                f"(?:{self._marker.pattern})[^\n]*?(?:{ends})",
                self._template.attempt(*messages).partition(NEXT_MARK)[0],
            ):
                yield found[0]

    def _closing_in(self, gap: str) -> str:
        """The part of a gap that closes the answer: what closes it at the end of a conversation, too, or a
        stop token."""
        if self._ending and gap.startswith(self._ending):
            return self._ending
        first = self._template.attempt({**USER, "content": NEXT_MARK}).partition(NEXT_MARK)[0]
        start = skip_space(gap, 0)
        stop = self._template.stop_at(gap, start)
        return gap[: skip_space(gap, start + len(stop))] if stop and not first.endswith(gap) else ""

    def _learn_closings(self) -> Iterator[str]:
        """What may stand before the assistant's header: the last token that closes a turn, else the text that
        does, maybe only space or nothing."""
        marked = {"content": MARK}
        result = {"role": "tool", "name": "f", "tool_call_id": VALID_IDENTITY, **marked}
        calling = self._template.call_style.prepare([USER, CALLING])
        conversations: Sequence[Sequence[Message]] = (
            [{**USER, **marked}],
            [{"role": "system", **marked}],
            [USER, ANSWER],
            [*calling, result],
        )
        for messages in conversations:
            closing, found, _ = (
                self._template.attempt(*messages, generation_prompt=True)
                .partition(MARK)[2]
                .partition(self._template.header)
            )
            if found:
                tokens = [
                    token
                    for token in self._template.added_tokens
                    if token and closing.rstrip().endswith(token)
                ]
                yield max(tokens, key=len, default=closing.strip() or closing)


def _common_prefix(one: str, other: str) -> str:
    return one[: common_prefix_length(one, other)]


def _unclear(text: str, position: int, why: str) -> NoReturn:
    raise DropError("unclear-turn", f"line {text.count(chr(10), 0, position) + 1} of the text: {why}")
