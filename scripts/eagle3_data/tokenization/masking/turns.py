"""Where in a rendered conversation the assistant's own text lies, proved by rendering.

A turn's text is what the model would have generated: from the end of the generation prompt up to and
including the token that stops generation. The conversation is rendered twice: as it is, and with marks in
every field of every message. Both renderings are the same but for the marks, or nothing is believed; so the
marks show for certain who wrote what. Between the marks stands only what the template writes. What of that
opens and what closes a turn is known from made-up conversations (`grammar`), else by rendering the
conversation up to there.

A turn that cannot be proved, or that the template does not show as the message has it, is reported as
unclear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from eagle3_data.tokenization.encoder import common_prefix_length
from eagle3_data.tokenization.masking.formatted import FormattedTurns
from eagle3_data.tokenization.masking.grammar import Grammar, Span
from eagle3_data.tokenization.masking.marks import (
    ARGUMENT,
    CONTENT,
    DEPTHS,
    IDENTITY,
    NAME,
    REASONING,
    Found,
    Marks,
    Piece,
    edge_before,
    edge_behind,
    shown_text,
)
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers
from eagle3_data.tokenization.masking.style import Message, Tools
from eagle3_data.tokenization.masking.template import ChatTemplate
from eagle3_data.tokenization.reading.messages import joined
from eagle3_data.tokenization.reading.rows import DropError

AROUND = 30
"""Characters of an expected and a found text that a message shows."""


@dataclass(frozen=True, slots=True)
class Rendering:
    """A rendered conversation and the spans of the wanted turns, in order, by their indices.

    `unclear`: why a wanted turn has no span, by its index. `hidden_reasoning`: indices of the wanted turns
    whose reasoning the template does not show.
    """

    text: str
    turns: Mapping[int, Span]
    unclear: Mapping[int, DropError] = field(default_factory=dict)
    hidden_reasoning: tuple[int, ...] = ()


class TurnLocator:
    """Finds the assistant's turns in conversations rendered by one template."""

    def __init__(self, template: ChatTemplate, markers: ReasoningMarkers) -> None:
        self._template = template
        self._markers = markers
        self.grammar = Grammar.learn(template, markers)

    def locate(self, messages: Sequence[Message], tools: Tools, wanted: Sequence[int]) -> Rendering:
        """Render `messages` (prepared by the template) and find the turns whose indices are `wanted`.
        Raises DropError where the template refuses the conversation or shows nothing of what the assistant
        says.

        A turn of which the template shows nothing, such as one of reasoning that it strips, has no span:
        its end alone is nothing to train.
        """
        text = self._template.render(messages, tools)
        marks, found = self._read(messages, tools, text)
        conversation = _Conversation(
            self._template, self.grammar, self._markers, messages, tools, text, marks, found
        )
        spans: dict[int, Span] = {}
        unclear: dict[int, DropError] = {}
        for index in wanted:
            try:
                if span := conversation.span(index):
                    spans[index] = span
            except DropError as drop:
                unclear[index] = drop
        for earlier, later in pairwise(list(spans)):
            if spans[later].start < spans[earlier].end:
                raise _unclear(later, "it begins inside the turn before it")
        if not spans and not unclear:
            raise DropError("empty", "the chat template shows nothing of what the assistant says")
        hidden = tuple(index for index in wanted if conversation.hides_reasoning(index))
        return Rendering(text, spans, unclear, hidden)

    def locate_in_text(self, text: str) -> Rendering:
        """The turns of a text to which the template has been applied already. Raises DropError, or InputError
        if no text of this template shows them.

        An answer that opens the text without a header is unclear: nothing parts it from a system prompt.
        """
        spans = self._formatted.locate(text)
        unopened = self._formatted.unopened(text)
        unclear = {0: unopened} if unopened else {}
        return Rendering(text, dict(enumerate(spans, start=len(unclear))), unclear)

    @cached_property
    def _formatted(self) -> FormattedTurns:
        return FormattedTurns(self._template, self.grammar, self._markers)

    def says_something(self, message: Message) -> bool:
        """Whether there is anything in an assistant's message to train on."""
        content = joined(message["content"])
        return bool(message.get("tool_calls")) or bool(self._markers.without_scaffold(content.strip()))

    def _read(self, messages: Sequence[Message], tools: Tools, text: str) -> tuple[Marks, list[Found]]:
        """The marks of the deepest marking under which the template writes what it writes without. Without
        any, no turn is proved."""
        for depth in DEPTHS:
            marks = Marks(messages, self._markers, text, depth)
            try:
                found = marks.read(self._template.render(marks.messages, tools), text)
            except DropError:
                continue
            if found is not None:
                return marks, found
        return marks, []


class _Conversation:
    """One rendering, and the marks found in it."""

    def __init__(
        self,
        template: ChatTemplate,
        grammar: Grammar,
        markers: ReasoningMarkers,
        messages: Sequence[Message],
        tools: Tools,
        text: str,
        marks: Marks,
        found: Sequence[Found],
    ) -> None:
        self._template = template
        self._grammar = grammar
        self._markers = markers
        self._messages = messages
        self._tools = tools
        self._text = text
        self._pieces = marks.pieces
        self._found = found
        self._places: dict[int, list[int]] = {}
        """By message, which of the marks found are its, each mark counted where it stands first."""
        seen: set[tuple[int, bool]] = set()
        for place, mark in enumerate(found):
            key = (id(mark.piece), mark.is_first)
            if key not in seen:
                seen.add(key)
                self._places.setdefault(mark.piece.index, []).append(place)

    def span(self, index: int) -> Span | None:
        """The turn of message `index`, None if the template shows nothing of it. Raises DropError."""
        message = self._messages[index]
        if not self._found:
            raise _unclear(
                index, "the chat template writes other things where a text holds private characters"
            )
        places = self._own_places(index)
        if not places and not message.get("tool_calls"):
            if any(piece.kind == CONTENT for piece in self._pieces[index]):
                raise DropError("not-shown", f"turn {index}: the chat template shows nothing of it")
            return None
        self._check_shown(index, places)
        before, behind = self._neighbours(index, places)
        floor = edge_behind(self._text, before) if before else 0
        if places:
            own = edge_before(self._text, self._found[places[0]], floor)
            end = edge_behind(self._text, self._found[places[-1]])
        else:  # a call whose function the template looks at, without arguments that could be marked
            name = message["tool_calls"][0]["function"]["name"]
            own = self._text.find(name, floor, behind.position if behind else len(self._text))
            if own < 0:
                raise DropError("not-shown", f"turn {index}: the chat template does not show the call")
            end = own + len(name)
        start = self._start(index, before, floor, own)
        limit = max(end, edge_before(self._text, behind, end)) if behind else None
        span = self._closed(index, start, end, limit)
        names = (call["function"]["name"] for call in message.get("tool_calls", ()))
        if any(name not in self._text[span.start : span.end] for name in names):
            raise DropError("not-shown", f"turn {index}: the chat template does not show the call")
        return span

    def _neighbours(self, index: int, places: Sequence[int]) -> tuple[Found | None, Found | None]:
        """The last mark of others before the turn and the first behind it. Where its own are not shown,
        those of the messages around it."""
        if places:
            before = self._found[places[0] - 1] if places[0] else None
            others = (mark for mark in self._found[places[-1] :] if mark.piece.index != index)
            return before, next(others, None)
        before = next((mark for mark in reversed(self._found) if mark.piece.index < index), None)
        return before, next((mark for mark in self._found if mark.piece.index > index), None)

    def hides_reasoning(self, index: int) -> bool:
        shown = {id(self._found[place].piece) for place in self._places.get(index, ())}
        reasoning = [piece for piece in self._pieces[index] if piece.kind == REASONING]
        return any(id(piece) not in shown for piece in reasoning)

    # What is shown

    def _own_places(self, index: int) -> list[int]:
        """Places of the turn's marks up to where somebody else speaks, who may repeat a call's name or id."""
        places = self._places.get(index, [])
        whole = places[:1]
        for place in places[1:]:
            earlier, mark = self._found[whole[-1]], self._found[place]
            between = self._found[whole[-1] + 1 : place]
            if between and any(other.piece.index != index for other in between):
                break
            if mark.piece is not earlier.piece and self._grammar.speaks_other(
                self._text, edge_behind(self._text, earlier), mark.position
            ):
                break
            whole.append(place)
        return whole

    def _check_shown(self, index: int, places: Sequence[int]) -> None:
        """Raises DropError unless all that the turn says, but for reasoning, is shown as the message has
        it."""
        found: dict[int, list[Found]] = {}
        for place in places:
            found.setdefault(id(self._found[place].piece), []).append(self._found[place])
        calls_shown = {
            piece.call
            for piece in self._pieces[index]
            if piece.kind in (NAME, IDENTITY) and id(piece) in found
        }
        for piece in self._pieces[index]:
            marks = found.get(id(piece), [])
            if not marks:
                if piece.kind == NAME and piece.call not in calls_shown:
                    raise DropError("not-shown", f"turn {index}: the chat template does not show the call")
                if piece.kind in (CONTENT, ARGUMENT):
                    what = "text" if piece.kind == CONTENT else "a call's argument"
                    raise DropError(
                        "not-shown",
                        f"turn {index}: the chat template does not show {what} {_short(piece.text)}",
                    )
                continue
            if piece.kind in (CONTENT, REASONING):
                self._check_letters(index, piece, marks)

    def _check_letters(self, index: int, piece: Piece, marks: Sequence[Found]) -> None:
        first, last = marks[0], marks[-1]
        if first.is_first and last.is_last and shown_text(self._text, first, last):
            lead = piece.text[: piece.first].lstrip()
            lead = lead[: len(lead) - (first.position - edge_before(self._text, first, 0))]
            rest = piece.text[piece.last + edge_behind(self._text, last) - last.position :]
            if not lead.strip() and not rest.strip():
                return
        raise DropError("rewritten", f"turn {index}: {self._difference(piece, first)}")

    def _difference(self, piece: Piece, first: Found) -> str:
        """The expected and the found text around the place where they part."""
        start = first.position - piece.first if first.is_first else first.position
        length = next(
            (at for at, letter in enumerate(piece.text) if self._text[start + at : start + at + 1] != letter),
            len(piece.text),
        )
        begin = max(0, length - AROUND // 2)
        return (
            f"expected {piece.text[begin : begin + AROUND]!r}, the chat template writes"
            f" {self._text[start + begin : start + begin + AROUND]!r}"
        )

    # Where it begins

    def _start(self, index: int, before: Found | None, floor: int, own: int) -> int:
        adjacent = before is not None and before.piece.index == index - 1
        role = self._messages[index - 1]["role"] if adjacent else ""
        start = self._grammar.start_behind(self._text, floor, own, role)
        if start is None:
            start = self._start_by_prefix(index, floor, own)
        return self._markers.behind_scaffolds(self._text, start, own, self._grammar.scaffold_space)

    def _start_by_prefix(self, index: int, floor: int, own: int) -> int:
        try:
            before = self._template.render(self._messages[:index], self._tools, generation_prompt=True)
        except DropError:
            before = ""  # many templates cannot render an empty conversation
        if before and floor <= len(before) <= own and self._text.startswith(before):
            return len(before)
        raise _unclear(index, "where it begins cannot be proved")

    # Where it ends

    def _closed(self, index: int, start: int, own: int, limit: int | None) -> Span:
        """The span from `start` with what closes the turn: between `own`, where its text ends, and `limit`,
        where somebody else's begins (None: nobody's does)."""
        grammar, text = self._grammar, self._text
        end = len(text) if limit is None else limit
        opened = grammar.opening_in(text, own, end)
        has_calls = bool(self._messages[index].get("tool_calls"))
        stop = grammar.stop_in(text, own, min(opened + 1, end))
        if stop and (has_calls or self._closes(own, stop[0])):
            return Span(start, *stop)
        if not has_calls:
            return Span(start, own, own)
        if limit is None and opened == end:
            behind = len(text[own:].removesuffix(grammar.trailer).rstrip())
            return Span(start, own + behind, own + behind)
        if opened < end:
            behind = own + len(text[own:opened].rstrip())
            return Span(start, behind, behind)
        closed = self._template.render(self._messages[: index + 1], self._tools)
        same = common_prefix_length(closed, text)
        if same < own:
            raise _unclear(index, "where it ends cannot be proved")
        behind = own + len(text[own : min(same, end)].rstrip())
        return Span(start, behind, behind)

    def _closes(self, own: int, stop: int) -> bool:
        """Whether between an answer and a stop token stands only what the template writes there."""
        between = self._text[own:stop]
        return not between.strip() or any(
            closing.lstrip().startswith(between.lstrip()) for closing in self._grammar.closings
        )


def _unclear(index: int, why: str) -> DropError:
    return DropError("unclear-turn", f"turn {index}: {why}")


def _short(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= AROUND else text[:AROUND] + "...")
