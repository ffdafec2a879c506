"""Judges loss masks without the code that makes them: every letter of every message is replaced by a private
character that tells whose it is, so that the rendering itself says who wrote what."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any

Message = dict[str, Any]
Render = Callable[[Sequence[Message], bool], str | None]
"""The text of messages, with a generation prompt if wanted; None if the template refuses them."""

SYNTAX = re.compile(r"<[^<>\n]{1,60}>|\[/?[A-Z_]{2,}\]|\{\{|\}\}|\{%|%\}|`{3}|\\.|[\"'<>\[\]{}]")
FIRST_CODE = 0x20000
REASONING = ("reasoning_content", "reasoning", "thinking")

RIGHT, FOREIGN, MISSING, END_MISSING, EXTRA, UNTRAINED, HIDDEN = (
    "right", "foreign", "missing", "end missing", "extra", "untrained", "hidden"
)  # fmt: skip
"""What is said of a turn: foreign text is trained in it, text of its own or its end is not, more of the
template's text is than the model writes, none of it is trained though all is shown, or not all is shown."""


class Owners:
    """Replaces letters and remembers whose they are."""

    def __init__(self) -> None:
        self._code: dict[tuple[int, str, str], str] = {}
        self.of: dict[str, tuple[int, str, str]] = {}

    def text(self, index: int, field: str, text: str) -> str:
        pieces, behind = [], 0
        for found in SYNTAX.finditer(text):
            pieces += self._letters(index, field, text[behind : found.start()]), found[0]
            behind = found.end()
        return "".join((*pieces, self._letters(index, field, text[behind:])))

    def messages(self, messages: Iterable[Message]) -> list[Message]:
        return [self._message(index, message) for index, message in enumerate(messages)]

    def original(self, text: str) -> str:
        return "".join(self.of[letter][2] if letter in self.of else letter for letter in text)

    def _letters(self, index: int, field: str, text: str) -> str:
        return "".join(
            self._letter((index, field, letter)) if letter.isalnum() else letter for letter in text
        )

    def _letter(self, key: tuple[int, str, str]) -> str:
        if key not in self._code:
            self._code[key] = chr(FIRST_CODE + len(self._code))
            self.of[self._code[key]] = key
        return self._code[key]

    def _message(self, index: int, message: Message) -> Message:
        owned = dict(message)
        if isinstance(message["content"], str):
            owned["content"] = self.text(index, "content", message["content"])
        for name in REASONING:
            if message.get(name):
                owned[name] = self.text(index, "reasoning", message[name])
        if message.get("tool_calls"):
            owned["tool_calls"] = [self._call(index, call) for call in message["tool_calls"]]
        return owned

    def _call(self, index: int, call: dict[str, Any]) -> dict[str, Any]:
        function = call["function"]
        arguments = self._value(index, function["arguments"])
        name = self.text(index, "name", function["name"])
        return {**call, "function": {**function, "name": name, "arguments": arguments}}

    def _value(self, index: int, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._value(index, inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self._value(index, inner) for inner in value]
        return self.text(index, "arguments", value) if isinstance(value, str) else value


def trained_letters(runs: Sequence[tuple[bool, str]], text: str) -> list[bool] | None:
    """For each character of a rendering whether it is trained, from the decoded runs of equal mask; None if
    they do not read as the rendering."""
    trained: list[bool] = []
    for flag, run in runs:
        start = len(trained)
        while start < len(text) and not text.startswith(run, start) and text[start].isspace():
            start += 1
        if not text.startswith(run, start):
            run = run.lstrip(" ")
            if not text.startswith(run, len(trained)):
                return None
            start = len(trained)
        trained += [False] * (start - len(trained)) + [flag] * len(run)
    return trained + [False] * (len(text) - len(trained)) if not text[len(trained) :].strip() else None


def judge(
    messages: Sequence[Message],
    wanted: Sequence[int],
    trained: Sequence[bool],
    text: str,
    render: Render,
    stops: Sequence[str],
) -> dict[int, str] | None:
    """What is to be said of each wanted turn; None if the template writes other things for replaced
    letters."""
    owners = Owners()
    rendered = render(owners.messages(messages), False)
    if rendered is None or owners.original(rendered) != text:
        return None
    owner = [owners.of.get(letter) for letter in rendered]
    places: dict[int, list[int]] = defaultdict(list)
    for place, found in enumerate(owner):
        if found:
            places[found[0]].append(place)
    verdicts = {}
    for index in wanted:
        names = "".join(call["function"]["name"] for call in messages[index].get("tool_calls") or ())
        own = _own_run(owner, places[index], index, sum(map(str.isalnum, names)))
        shown = {owner[place][1] for place in own}  # type: ignore[index]
        message = messages[index]
        hidden = (message.get("tool_calls") and "name" not in shown) or (
            any(letter.isalnum() for letter in _answer(message)) and "content" not in shown
        )
        before = max((place for place in range(own[0]) if owner[place]), default=-1) if own else 0
        behind = (
            next((place for place in range(own[-1] + 1, len(text)) if owner[place]), len(text)) if own else 0
        )
        if not own or not any(trained[place] for place in own):
            verdicts[index] = HIDDEN if hidden or not own else UNTRAINED
        else:
            # whose an end is cannot be told where the next message shows no letter
            known = index + 1 == len(messages) or places[index + 1]
            verdicts[index] = _verdict(own, trained, text, (before, behind), stops if known else ())
            if index and _prompt_is_trained(messages[:index], trained, text, render):
                verdicts[index] = EXTRA
    for place, found in enumerate(owner):
        if found and trained[place] and found[0] not in wanted:
            nearest = min(wanted, key=lambda index: abs((places[index] or [0])[0] - place))
            verdicts[nearest] = FOREIGN
    return verdicts


def _prompt_is_trained(before: Sequence[Message], trained: Sequence[bool], text: str, render: Render) -> bool:
    """Whether anything of the generation prompt is trained, where it stands in the rendering."""
    closed, prompted = render(before, False), render(before, True)
    if not closed or not prompted or not prompted.startswith(closed) or not text.startswith(prompted):
        return False
    start, end = len(closed), len(prompted)
    return any(
        flag and not letter.isspace()
        for flag, letter in zip(trained[start:end], text[start:end], strict=True)
    )


def _answer(message: Message) -> str:
    return (message["content"] or "").rpartition("</think>")[2]


def _own_run(owner: Sequence[Any], places: Sequence[int], index: int, letters_of_names: int) -> list[int]:
    """The places of a turn up to where somebody else's text stands; a call's name may come again behind."""
    run: list[int] = []
    for place in places:
        if run and any(found and found[0] != index for found in owner[run[-1] + 1 : place]):
            break
        run.append(place)
    names = [place for place in run if owner[place][1] == "name"]
    again = set(names[letters_of_names:])  # said once more of the result
    return [place for place in run if place not in again]


def _verdict(
    own: Sequence[int], trained: Sequence[bool], text: str, around: tuple[int, int], stops: Sequence[str]
) -> str:
    if not all(trained[place] for place in own):
        return MISSING
    start, end = own[-1] + 1, around[1]
    found = [(place, -len(stop)) for stop in stops if (place := text.find(stop, start, end)) >= 0]
    if not found:
        return RIGHT
    place, length = min(found)
    if not all(trained[place : place - length]):
        return END_MISSING
    late = place - length
    while late < end and trained[late] and text[late].isspace():
        late += 1
    return EXTRA if late < end and trained[late] else RIGHT


def runs_of(
    ids: Sequence[int], mask: Sequence[int], decode: Callable[[list[int]], str]
) -> list[tuple[bool, str]]:
    """Decoded runs of tokens of equal mask."""
    return [
        (bool(flag), decode([token for _, token in run]))
        for flag, run in groupby(zip(mask, ids, strict=True), key=lambda pair: pair[0])
    ]
