"""Whether a found text is what a message says. Independent of how it was found, so that it proves the
finding. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers


@dataclass(frozen=True)
class Verifier:
    """Compares a turn's text with its message.

    `lead` is what this template's assistant writes before a plain answer, `header` what opens its turns,
    which must not be inside one.
    """

    markers: ReasoningMarkers
    lead: str
    header: str

    def reads_right(self, body: str, message: dict[str, Any]) -> bool:
        """Whether `body` holds the message's answer, reasoning and calls in order, and beyond them only the
        template's own syntax."""
        body = body.strip()
        content = self.markers.without_scaffold((message["content"] or "").strip())
        if self.header.strip() and self.header in body and self.header not in content:
            return False
        inline, answer = self.markers.split(content)
        if message.get("tool_calls"):
            return self._holds_calls(body, answer, message)
        if body in (content, answer) or (
            self.lead and body.removeprefix(self.lead.strip()).strip() in (content, answer)
        ):
            return True
        reasoning = (message.get("reasoning_content") or "").strip() or inline
        return bool(reasoning) and body.endswith(answer) and reasoning in body[: len(body) - len(answer)]

    def _holds_calls(self, body: str, answer: str, message: dict[str, Any]) -> bool:
        position = 0
        for piece in (answer, *_pieces(body, message["tool_calls"])):
            found = body.find(piece, position)
            if found < 0:
                return False
            position = found + len(piece)
        return True


def _pieces(body: str, calls: list[dict[str, Any]]) -> Iterator[str]:
    """Names and arguments of tool calls, in the form in which they stand in the text: templates write JSON,
    XML or plain values."""
    for call in calls:
        yield call["function"]["name"]
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            yield arguments
            continue
        for leaf in _leaves(arguments):
            text = leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)
            forms = (
                json.dumps(text, ensure_ascii=False)[1:-1],
                json.dumps(text)[1:-1],
                text.strip(),
                str(leaf),
            )
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
