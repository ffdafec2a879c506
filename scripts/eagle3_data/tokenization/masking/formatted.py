"""The assistant's turns in a text to which the chat template has been applied already.

Such a text does not say who wrote what; only the template's own syntax does. Made-up conversations teach what
opens the turns of each speaker and what closes them. A turn is the assistant's if its header stands where a
turn may begin, and it ends with its end token, behind which nothing but the next turn follows. Where the
template has no end token, it ends where another speaker's turn opens exactly as the template opens it.
A row that fits neither is dropped, not guessed at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import NoReturn

from eagle3_data.errors import InputError
from eagle3_data.tokenization.encoder import common_prefix_length
from eagle3_data.tokenization.masking.grammar import (
    ANSWER,
    CALLING,
    MARK,
    NEXT_MARK,
    REASONING_MARK,
    SYSTEM,
    USER,
    Grammar,
    Span,
    marked,
)
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers, skip_space
from eagle3_data.tokenization.masking.style import NAME, SHORT_IDENTITY, TOOLS, Message
from eagle3_data.tokenization.masking.template import ChatTemplate
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

    def __init__(self, template: ChatTemplate, grammar: Grammar, markers: ReasoningMarkers) -> None:
        """Raises InputError if the template does not say where a turn begins or ends."""
        self._template = template
        self._grammar = grammar
        self._markers = markers
        if not grammar.headers:
            raise InputError(
                "the chat template has no text that opens every turn of the assistant, so turns cannot be"
                " found in a text; set the source's `trained: all`"
            )
        self._headers = [self._opening(header) for header in grammar.headers]
        self._ending = self._tail(USER, marked(ANSWER, MARK))
        self._leads = self._learn_leads()
        openings, self._closing = self._learn_openings()
        self._has_end_token = grammar.stop_in(self._closing, 0, len(self._closing)) is not None
        if not self._has_end_token and not all(self._opening(text).marker for text in openings):
            raise InputError(
                "the chat template closes no turn of the assistant, and what follows one may be opened by"
                " nothing, so turns' ends cannot be found in a text; set the source's `trained: all`"
            )
        self._openings = [
            self._opening(text) for text in dict.fromkeys(openings) if self._opening(text).marker
        ]
        found = {opening.marker for opening in (*self._headers, *self._openings)}
        self._marker = re.compile("|".join(map(re.escape, sorted(found, key=len, reverse=True))))
        self._preambles = [self._opening(text) for text in dict.fromkeys(self._learn_preambles())]
        self._closings = tuple(dict.fromkeys(self._learn_closings()))
        self._closers = self._learn_closers()
        self._behind_header = reduce(_common_prefix, self._learn_answers()) if "" in self._closings else ""
        harmless = [re.escape(stop) for stop in grammar.stops if stop not in self._closers]
        self._spoken_first = self._closers - set(self._learn_preamble_closers())
        self._nothing = re.compile("|".join((r"\s", *harmless)) if harmless else r"\s")

    def locate(self, text: str) -> tuple[Span, ...]:
        """The turns in which the assistant says something, in order. Raises DropError("unclear-turn") where
        one is not certain."""
        spans = []
        markers = [found.start() for found in self._marker.finditer(text)]
        behind = 0
        for position, following in zip(markers, [*markers, None][1:], strict=True):
            if position < behind:
                continue  # a part of the opening before it
            if header := self._header_at(text, position):
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

    def unopened(self, text: str) -> DropError | None:
        """What is unclear of a text that begins with an answer which no header opens: something before the
        first turn ends as only answers end. None if there is no such thing."""
        found = self._marker.search(text)
        before = text[: found.start()] if found else text
        if not any(closer in before for closer in self._spoken_first):
            return None
        return _unclear_turn(text, 0, "something that no header opens ends as a turn of the assistant does")

    def _header_at(self, text: str, position: int) -> tuple[int, int] | None:
        """The longest of the assistant's headers whose marker stands at `position`."""
        found = [span for header in self._headers if (span := header.match(text, position))]
        return max(found, key=lambda span: span[1], default=None)

    def _start_of_answer(self, text: str, header_end: int) -> int:
        """Behind the rest of the generation prompt, and behind empty scaffolds."""
        start = header_end + max(
            (len(rest) for rest in self._rests() if text.startswith(rest, header_end)), default=0
        )
        return self._markers.behind_scaffolds(text, start, len(text), self._grammar.scaffold_space)

    def _rests(self) -> Iterator[str]:
        for rests in self._grammar.headers.values():
            yield from rests

    def _says_something(self, text: str, span: Span) -> bool:
        """Whether there is more than what the template writes before every answer, and empty scaffolds."""
        leads = (len(lead) for lead in self._leads if text.startswith(lead, span.start))
        position = span.start + max(leads, default=0)
        while (further := self._start_of_answer(text, position)) > position:
            position = further
        said = text[position : span.stop].strip()
        return not any(closing.strip().startswith(said) for closing in ("", *self._grammar.closings))

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
        stop = self._grammar.stop_in(text, start, following)
        if stop and self._has_end_token:
            return self._stopped(text, start, stop, following)
        if self._has_end_token:
            _unclear(text, start, "a turn of the assistant has no end token")
        if stop:
            _unclear(
                text, start, "a turn of the assistant holds an end token, and the chat template writes none"
            )
        ends = [found[0] for opening in self._openings if (found := opening.match(text, following))]
        if self._header_at(text, following) or not ends:
            _unclear(text, start, "a turn of the assistant does not end where another speaker's begins")
        end = min(ends)
        body_end = end - len(self._closing)
        if body_end < start or not text.startswith(self._closing, body_end):
            _unclear(text, start, "a turn of the assistant does not end as the chat template ends one")
        behind = skip_space(text, body_end)
        stop_text = self._grammar.stop_at(
            text, behind
        )  # some models stop with the token that opens the next turn
        return (
            Span(start, body_end, behind + len(stop_text)) if stop_text else Span(start, body_end, body_end)
        )

    def _last(self, text: str, start: int) -> Span:
        """The last turn: to its end token, else to the end of a text that stops inside it, without what the
        template alone may have written."""
        if stop := self._grammar.stop_in(text, start, len(text)):
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
        """An opening is recognized by the added token with which it begins, unless answers have that, too;
        else by its visible text up to a name."""
        visible = re.split(f"{NAME}|{SHORT_IDENTITY}", text)[0].strip()
        of_answers = "".join((*self._rests(), *getattr(self, "_leads", ())))
        tokens = [
            token
            for token in self._template.added_tokens
            if token and visible.startswith(token) and token not in of_answers
        ]
        marker = max(tokens, key=len, default=visible)
        pattern = re.compile(re.escape(text).replace(NAME, NAMED).replace(SHORT_IDENTITY, NAMED))
        return Opening(marker, text.index(marker), pattern)

    def _render(self, *messages: Message, generation_prompt: bool = False) -> str:
        prepared = self._template.style.prepare(messages)
        return next(
            filter(
                None,
                (
                    self._template.attempt(*prepared, tools=tools, generation_prompt=generation_prompt)
                    for tools in (None, TOOLS)
                ),
            ),
            "",
        )

    def _tail(self, *messages: Message) -> str:
        return self._render(*messages).partition(MARK)[2]

    def _behind_the_header(self, text: str) -> str | None:
        """What stands behind the last header of a text, None if there is none."""
        ends = [place + len(header) for header in self._grammar.headers if (place := text.rfind(header)) >= 0]
        return text[max(ends) :] if ends else None

    def _learn_leads(self) -> tuple[str, ...]:
        """What the template writes between the generation prompt and an answer."""
        found = []
        for tail in ((), (USER,)):
            opened = self._render(USER, marked(ANSWER, MARK), *tail).partition(MARK)[0]
            if (behind := self._behind_the_header(opened)) is not None:
                found.append(behind[self._start_of_answer(behind, 0) :])
        return tuple(dict.fromkeys(found))

    def _learn_closers(self) -> set[str]:
        """The tokens that end answers and calls."""
        found = set()
        for closing in self._grammar.closings:
            if stop := self._grammar.stop_in(closing, 0, len(closing)):
                found.add(closing[slice(*stop)])
        call = self._behind_the_header(self._render(USER, CALLING)) or ""
        if found and (stop := self._grammar.stop_in(call, 0, len(call))):
            found.add(call[slice(*stop)])
        return found

    def _learn_preamble_closers(self) -> Iterator[str]:
        """Which of these tokens the template also writes before anybody's first turn."""
        for messages in ([marked(USER, NEXT_MARK)], [SYSTEM, marked(USER, NEXT_MARK)]):
            text = self._render(*messages).partition(NEXT_MARK)[0]
            found = self._marker.search(text)
            yield from (
                closer for closer in self._closers if closer in text[: found.start() if found else None]
            )

    def _learn_answers(self) -> Iterator[str]:
        """What stands behind the assistant's header, for turns of several kinds."""
        answer = marked(ANSWER, MARK)
        reasoned: Message = {**answer, **dict.fromkeys(REASONING_FIELDS, REASONING_MARK)}
        for messages in ([USER, answer], [USER, answer, USER], [USER, reasoned], [USER, CALLING]):
            if (behind := self._behind_the_header(self._render(*messages))) is not None:
                yield re.split(f"{MARK}|{REASONING_MARK}", behind)[0]
        yield from filter(None, self._rests())

    def _learn_openings(self) -> tuple[list[str], str]:
        """What opens turns of each other speaker behind an answer, empty if nothing visible does; and what
        closes the answer."""
        gaps = {role: gaps for role in ("user", "system", "tool") if (gaps := list(self._gaps(role)))}
        closing = self._closing_in(gaps["user"][0]) if "user" in gaps else ""
        return [gap.removeprefix(closing) for texts in gaps.values() for gap in texts], closing

    def _gaps(self, role: str) -> Iterator[str]:
        """What stands between an answer and a message of this role, without and with a name. Nothing if the
        template shows no such message."""
        answer = marked(ANSWER, MARK)
        for named in ({}, {"name": NAME}):
            message: Message = {
                "role": role,
                "content": NEXT_MARK,
                **named,
                **({"tool_call_id": SHORT_IDENTITY} if role == "tool" else {}),
            }
            before, found, _ = self._render(USER, answer, message).partition(NEXT_MARK)
            if found:
                yield before.partition(MARK)[2]
            elif role == "tool":  # refused without a call before it
                closed = self._render(USER, CALLING)
                before, found, _ = self._render(USER, CALLING, message).partition(NEXT_MARK)
                if found:
                    behind = before[len(closed) :]
                    yield self._closing_in(behind) + behind if before.startswith(closed) else ""

    def _learn_preambles(self) -> Iterator[str]:
        """What opens turns that stand only at the beginning, such as the template's own system prompt: a
        marker, and up to a token or line feed."""
        ends = "|".join(map(re.escape, (*filter(None, self._template.added_tokens), "\n")))
        question, system = marked(USER, NEXT_MARK), marked(SYSTEM, MARK)
        for messages in ([question], [system, question]):
            for found in re.finditer(
                f"(?:{self._marker.pattern})[^\n]*?(?:{ends})",
                self._render(*messages).partition(NEXT_MARK)[0],
            ):
                yield found[0]

    def _closing_in(self, gap: str) -> str:
        """The part of a gap that closes the answer: what closes it at the end of a conversation, too, or a
        stop token."""
        if self._ending and gap.startswith(self._ending):
            return self._ending
        first = self._render(marked(USER, NEXT_MARK)).partition(NEXT_MARK)[0]
        stop = self._grammar.stop_in(gap, 0, len(gap))
        opens = first.endswith(gap) and first.removesuffix(gap).strip() in ("", *self._template.added_tokens)
        return gap[: skip_space(gap, stop[1])] if stop and not opens else ""

    def _learn_closings(self) -> Iterator[str]:
        """What may stand before the assistant's header: the last token that closes a turn, else the text that
        does, maybe only space or nothing."""
        result = {"role": "tool", "name": "f", "tool_call_id": SHORT_IDENTITY, "content": MARK}
        conversations: Sequence[Sequence[Message]] = (
            [marked(USER, MARK)],
            [marked(SYSTEM, MARK)],
            [USER, marked(ANSWER, MARK)],
            [USER, CALLING, result],
        )
        for messages in conversations:
            behind = self._render(*messages, generation_prompt=True).partition(MARK)[2]
            places = [place for header in self._grammar.headers if (place := behind.find(header)) >= 0]
            if places:
                closing = behind[: min(places)]
                tokens = [token for token in self._template.added_tokens if closing.rstrip().endswith(token)]
                yield max(tokens, key=len, default=closing.strip() or closing)


def _common_prefix(one: str, other: str) -> str:
    return one[: common_prefix_length(one, other)]


def _unclear(text: str, position: int, why: str) -> NoReturn:
    raise _unclear_turn(text, position, why)


def _unclear_turn(text: str, position: int, why: str) -> DropError:
    return DropError("unclear-turn", f"line {text.count(chr(10), 0, position) + 1} of the text: {why}")
