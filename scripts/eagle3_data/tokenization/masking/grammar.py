"""What a few made-up conversations teach about a chat template: how it opens and closes turns.

Nothing here knows any model's template. All texts are found by rendering with marks and looking at what
stands between them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers
from eagle3_data.tokenization.masking.style import NAME, SHORT_IDENTITY, TOOLS, Message, Tools
from eagle3_data.tokenization.masking.template import ChatTemplate
from eagle3_data.tokenization.reading.messages import REASONING_FIELDS

MARK, NEXT_MARK, REASONING_MARK, EARLIER_MARK = "\ue0f1", "\ue0f2", "\ue0f3", "\ue0f4"
"""Stand in for texts whose place in a rendering is looked for."""

SPEAKERS = re.compile(f"{NAME}|{SHORT_IDENTITY}")
"""Where an opening names somebody or something."""

USER: Message = {"role": "user", "content": "q"}
SYSTEM: Message = {"role": "system", "content": "s"}
ANSWER: Message = {"role": "assistant", "content": "a"}
CALLING: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": SHORT_IDENTITY, "type": "function", "function": {"name": NAME, "arguments": {"k": "v"}}}
    ],
}
RESULT: Message = {"role": "tool", "name": NAME, "tool_call_id": SHORT_IDENTITY, "content": "r"}

BEFORE_AN_ANSWER: tuple[tuple[Message, ...], ...] = (
    (USER,),
    (SYSTEM, USER),
    (USER, ANSWER, USER),
    (USER, CALLING, RESULT),
    (USER, CALLING, RESULT, ANSWER, USER),
    (USER, ANSWER),
    (USER, ANSWER, SYSTEM),
)
FEWEST_VISIBLE = 2
"""Characters of a text that is searched for in a rendering."""


def marked(message: Message, mark: str) -> Message:
    return {**message, "content": mark}


@dataclass(frozen=True, slots=True)
class Span:
    """Characters start..stop of a rendering are a turn's generated text, stop..end the token that ends it
    (empty if there is none)."""

    start: int
    stop: int
    end: int


@dataclass(frozen=True)
class Grammar:
    """How a template opens and closes turns.

    `prompts`: by the role of the message before, what stands between that message's text and what the model
    writes. `headers`: what opens the assistant's turns wherever they stand, and with each what else a
    generation prompt has behind it. `openings`: what opens others' turns. `closers`: texts of tokens with
    which the template closes the assistant's turns although they are not stop tokens of the target. `stops`:
    these and the target's own. `closings`: all that stands behind an answer, up to the next turn or the
    end. `trailer`: what the template writes behind the last turn, and nobody says. `scaffold_space`: the
    white space that the template writes between empty reasoning and the answer, if it always writes the
    same.
    """

    prompts: dict[str, tuple[str, ...]]
    headers: dict[str, tuple[str, ...]]
    openings: tuple[str, ...]
    closers: tuple[str, ...]
    stops: tuple[str, ...]
    closings: tuple[str, ...]
    trailer: str
    scaffold_space: str | None

    @classmethod
    def learn(cls, template: ChatTemplate, markers: ReasoningMarkers) -> Grammar:
        return _Learner(template, markers).grammar()

    def stop_in(self, text: str, start: int, end: int) -> tuple[int, int] | None:
        """Start and end of the first stop token that begins in text[start:end], the longest where two do."""
        longest = max(map(len, self.stops), default=0)
        hits = [
            (place, -len(stop))
            for stop in self.stops
            if 0 <= (place := text.find(stop, start, end + longest)) < end
        ]
        if not hits:
            return None
        place, length = min(hits)
        return place, place - length

    def stop_at(self, text: str, place: int) -> str:
        """The stop token at `place`, the longest if several; empty if there is none."""
        return max((stop for stop in self.stops if text.startswith(stop, place)), key=len, default="")

    def opening_in(self, text: str, start: int, end: int) -> int:
        """Where in text[start:end] the first turn opens, `end` if none does."""
        places = (text.find(opening, start, end) for opening in (*self.openings, *self.headers))
        return min((place for place in places if place >= 0), default=end)

    def speaks_other(self, text: str, start: int, end: int) -> bool:
        """Whether another speaker's turn opens in text[start:end]."""
        return any(text.find(opening, start, end) >= 0 for opening in self.openings)

    def start_behind(self, text: str, start: int, end: int, role: str) -> int | None:
        """Where in text[start:end], which begins behind a message of this role, the model begins to write.

        `role` is empty if the message before shows nothing. None: no text of the template shows it.
        """
        found = None
        for prompt in self.prompts.get(role, ()):
            if text.startswith(prompt, start) and start + len(prompt) <= end:
                found = start + len(prompt)
                break
        floor = start if found is None else found
        places = [
            (place, len(header)) for header in self.headers if (place := text.rfind(header, floor, end)) >= 0
        ]
        if not places:
            return found
        place, length = max(places)
        behind = place + length
        rests = self.headers[text[place:behind]]
        return behind + max((len(rest) for rest in rests if text.startswith(rest, behind)), default=0)


class _Learner:
    def __init__(self, template: ChatTemplate, markers: ReasoningMarkers) -> None:
        self._template = template
        self._markers = markers
        self._own_stops = template.stop_texts
        self._tokens = template.added_tokens
        self._closing_stops: set[str] = set()

    def grammar(self) -> Grammar:
        openings, closers, closings, trailer = self._ends()
        stops = (*self._own_stops, *closers)
        firsts = ([stop for stop in stops if stop in closing] for closing in closings)
        self._closing_stops = {
            min(found, key=closing.find) for found, closing in zip(firsts, closings, strict=True) if found
        }
        prompts, headers = self._starts()
        return Grammar(
            prompts=prompts,
            headers=headers,
            openings=tuple(
                text for text in openings if not any(header.startswith(text) for header in headers)
            ),
            closers=closers,
            stops=tuple(dict.fromkeys((*self._own_stops, *closers))),
            closings=closings,
            trailer=trailer,
            scaffold_space=self._scaffold_space(),
        )

    def _render(self, messages: Sequence[Message], tools: Tools = None, *, prompt: bool = False) -> str:
        """The conversation as text, empty if the template refuses it."""
        prepared = self._template.style.prepare(messages)
        return self._template.attempt(*prepared, tools=tools, generation_prompt=prompt)

    # Starts

    def _starts(self) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
        prompts: dict[str, dict[str, None]] = {}
        candidates: dict[str, list[str]] = {}
        gaps: dict[str, None] = {}
        ignores_prompts = self._ignores_prompts()
        for context in BEFORE_AN_ANSWER:
            for tools in (None, TOOLS):
                *before, last = context
                earlier = [turn if "tool_calls" in turn else marked(turn, EARLIER_MARK) for turn in before]
                head = [*earlier, marked(last, MARK)]
                prompted = self._render(head, tools, prompt=True).rpartition(MARK)
                bare = self._render(head, tools).rpartition(MARK)
                if not prompted[1] or EARLIER_MARK in prompted[2]:  # refused, or written elsewhere
                    continue
                answered = self._answered(head, tools)
                gaps |= dict.fromkeys(answered)
                prompt = prompted[2]
                own = prompts.setdefault(last["role"], {})
                ignored = prompted == bare and (ignores_prompts or not prompt.strip())
                if not ignored:
                    own[prompt] = None
                if prompted != bare:
                    opening = prompt[self._shared(prompt, bare[2] if bare[1] else "") :]
                    candidates.setdefault(self._behind_closing(opening), [])
                    continue
                for gap in answered:
                    if gap.startswith(prompt) and not (ignored and gap[len(prompt) :].strip()):
                        gap = prompt
                    own[gap] = None
                    if last["role"] not in ("user", "tool"):
                        continue  # what closes another's turn opens an answer only here
                    shared = gap[: self._shared(gap, prompt)]
                    rests = [prompt[len(shared) :], gap[len(shared) :]]
                    if len(shared.strip()) < FEWEST_VISIBLE:
                        shared, rests = gap, []
                    opening = self._behind_closing(SPEAKERS.split(shared)[-1])
                    candidates.setdefault(opening, []).extend(rests)
        longest_first = {role: tuple(sorted(texts, key=len, reverse=True)) for role, texts in prompts.items()}
        return longest_first, self._headers(candidates, gaps)

    def _headers(
        self, candidates: Mapping[str, Iterable[str]], gaps: Iterable[str]
    ) -> dict[str, tuple[str, ...]]:
        """By header of an answer that history has, too, what may stand behind it. `candidates` are openings
        of answers with what followed them, `gaps` what history has between a turn and an answer."""
        headers: dict[str, dict[str, None]] = {}
        for candidate, rests in candidates.items():
            for gap in gaps:
                header, rest = self._header(candidate, gap)
                if len(header.strip()) >= FEWEST_VISIBLE:
                    begun = chain.from_iterable(map(self._beginnings, (rest, *rests)))
                    headers.setdefault(header, {}).update(dict.fromkeys(begun))
        return {header: tuple(rests) for header, rests in headers.items()}

    def _answered(self, head: list[Message], tools: Tools) -> list[str]:
        """What stands between a conversation's last turn and the answer to it, as the last turn and followed
        by another."""
        answered = [*head, marked(ANSWER, NEXT_MARK)]
        gaps = (_between(self._render([*answered, *tail], tools)) for tail in ([], [USER]))
        return [gap for gap in gaps if gap is not None]

    def _ignores_prompts(self) -> bool:
        """Whether only an answer opens the assistant's turn, and never a generation prompt: what stands
        behind a question closes it, whoever speaks next."""
        question = marked(USER, MARK)
        for tools in (None, TOOLS):
            prompted = self._render([question], tools, prompt=True)
            if prompted and prompted == self._render([question], tools):
                prompt = prompted.rpartition(MARK)[2]
                answered = _between(self._render([question, marked(ANSWER, NEXT_MARK)], tools)) or ""
                asked = _between(self._render([question, marked(USER, NEXT_MARK)], tools))
                opened = answered.removeprefix(prompt).strip()
                return bool(opened) and (asked is None or asked.startswith(prompt))
        return False

    def _header(self, candidate: str, gap: str) -> tuple[str, str]:
        """The part of a generation prompt that history has, too, and what else the prompt has behind that."""
        for length in range(len(candidate), 0, -1):
            if candidate[:length] in gap and self._is_border(candidate, length):
                if len(candidate[:length].strip()) >= FEWEST_VISIBLE:
                    return candidate[:length], candidate[length:]
                break
        for start in range(1, len(candidate)):
            if candidate[start:] in gap and self._is_border(candidate, start):
                return candidate[start:], ""
        return "", ""

    def _beginnings(self, rest: str) -> Iterator[str]:
        """The rest of a prompt, whole and cut behind each token."""
        yield from (rest[:length] for length in range(len(rest), 0, -1) if self._is_border(rest, length))

    def _shared(self, one: str, other: str) -> int:
        """The length of what both begin with, without parts of tokens and tags."""
        length = _common_prefix(one, other)
        while not self._is_border(one, length):
            length -= 1
        return length

    def _behind_closing(self, text: str) -> str:
        """The part of a text that stands behind the last token in it that closes answers."""
        ends = (text.rfind(stop) + len(stop) for stop in self._closing_stops if stop in text)
        return text[max(ends, default=0) :].lstrip()

    def _is_border(self, text: str, place: int) -> bool:
        """Whether no added token and no tag lies across `place`."""
        if place in (0, len(text)):
            return True
        for token in self._tokens:
            start = text.find(token, max(0, place - len(token) + 1), place + len(token) - 1)
            if 0 <= start < place < start + len(token):
                return False
        opened = text.rfind("<", 0, place)
        return opened < 0 or ">" in text[opened:place]

    # Ends

    def _ends(self) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str]:
        """What opens other speakers' turns, the tokens that close answers, all that stands behind answers,
        and what is written behind the last turn whoever speaks."""
        openings: dict[str, None] = {}
        closings: dict[str, None] = {}
        trailers: dict[str, None] = {}
        for tools in (None, TOOLS):
            trailer = self._trailer(tools)
            trailers[trailer] = None
            asked = ([marked(USER, MARK)], [SYSTEM, marked(USER, MARK)])
            tails = [self._tail(messages, tools).removesuffix(trailer) for messages in asked]
            closing_tokens = {token for tail in tails if (token := self._token_at(tail))}
            for messages, length in self._followed():
                at_end = self._tail(messages[:length], tools).removesuffix(trailer)
                if at_end and messages[length - 1]["content"] == MARK:
                    closings[at_end] = None
                gap = _between(self._render(messages, tools))
                if gap is None:
                    continue
                inside = gap[: self._closing_length(gap, at_end, closing_tokens)]
                opening = SPEAKERS.split(gap[len(inside) :].lstrip())[0]
                if len(opening.strip()) >= FEWEST_VISIBLE:
                    openings[opening] = None
                if messages[length]["role"] == "user":
                    closings[inside] = None
        closers = {
            token: None
            for closing in closings
            if not any(stop in closing for stop in self._own_stops) and (token := self._token_at(closing))
        }
        return tuple(openings), tuple(closers), tuple(closings), max(trailers, key=len)

    def _followed(self) -> Iterator[tuple[list[Message], int]]:
        """Conversations in which another message follows a turn of the assistant, and the length of the
        part that ends with that turn."""
        answered = [USER, marked(ANSWER, MARK)]
        yield [*answered, marked(USER, NEXT_MARK)], 2
        yield [*answered, marked(SYSTEM, NEXT_MARK), USER, ANSWER], 2
        yield [*answered, marked(RESULT, NEXT_MARK)], 2
        function = {"name": NAME, "arguments": {"k": MARK}}
        calling = {**CALLING, "tool_calls": [{**CALLING["tool_calls"][0], "function": function}]}
        yield [USER, calling, marked(RESULT, NEXT_MARK), ANSWER], 2

    def _tail(self, messages: Sequence[Message], tools: Tools) -> str:
        """What stands behind the mark where nothing follows."""
        return self._render(messages, tools).rpartition(MARK)[2]

    def _closing_length(self, gap: str, at_end: str, closing_tokens: set[str]) -> int:
        """How much of what stands between an answer and the next message closes the answer."""
        length = self._shared(gap, at_end)
        if gap[:length].strip():
            return length
        start = len(gap) - len(gap.lstrip())
        token = self._token_at(gap)
        return start + len(token) if token in closing_tokens or token in self._own_stops else length

    def _token_at(self, text: str) -> str:
        """The added token with which a text begins, white space aside; the longest if several."""
        text = text.lstrip()
        return max((token for token in self._tokens if text.startswith(token)), key=len, default="")

    def _trailer(self, tools: Tools) -> str:
        """What stands behind the last message whoever it is of, such as instructions, and never inside."""
        found = set()
        for message in (ANSWER, USER):
            alone = self._tail([USER, marked(message, MARK)], tools)
            inside = (
                _between(self._render([USER, marked(message, MARK), marked(USER, NEXT_MARK)], tools)) or ""
            )
            shared = alone[: self._shared(alone, inside)]
            ends = [shared.find(stop) + len(stop) for stop in self._own_stops if stop in shared]
            token = self._token_at(shared)
            closed = min(ends, default=shared.find(token) + len(token) if token else len(shared))
            found.add(alone[closed:].lstrip())
        trailer = found.pop()
        return trailer if not found and len(trailer) >= FEWEST_VISIBLE else ""

    def _scaffold_space(self) -> str | None:
        openings = [
            self._render([USER, marked(ANSWER, MARK), *tail]).partition(MARK)[0] for tail in ([], [USER])
        ]
        found = {
            opening[len(opening.rstrip()) :]
            for opening in openings
            if any(opening.rstrip().endswith(closing) for _, closing in self._markers.pairs)
        }
        return found.pop() if len(found) == 1 else None


def reasoned(message: Message, reasoning: str) -> Message:
    return {**message, **dict.fromkeys(REASONING_FIELDS, reasoning)}


def _between(text: str) -> str | None:
    """What stands between the two marks, None if they do not both stand there in this order."""
    _, found, behind = text.partition(MARK)
    gap, also, _ = behind.partition(NEXT_MARK)
    return gap if found and also else None


def _common_prefix(one: str, other: str) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )
