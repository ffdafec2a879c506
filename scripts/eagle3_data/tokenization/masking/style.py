"""How a chat template wants messages, found by rendering them in different forms; and messages brought into
that form."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count, product
from typing import Any

from eagle3_data.hashing import hash_bytes
from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.messages import REASONING_FIELDS, joined
from eagle3_data.tokenization.reading.rows import DropError

Message = JsonObject

ARGUMENT, NAME, IDENTITY = "qArgumentq", "qNameq", "qIdentityq"
"""Stand in for parts of a call that are looked for in a rendering. Plain letters, which JSON and Python write
alike."""

SHORT_IDENTITY = "call00001"
"""Nine letters and digits, as some templates insist on."""

ONE, TWO = "qOneq", "qTwoq"

TOOLS: list[JsonObject] = [
    {
        "type": "function",
        "function": {
            "name": NAME,
            "description": "d",
            "parameters": {
                "type": "object",
                "properties": {"k": {"type": "string", "description": "d"}},
                "required": ["k"],
            },
        },
    }
]
Tools = list[JsonObject] | None


@dataclass(frozen=True)
class MessageStyle:
    """What a template makes of messages.

    `arguments_as_object`: a call's arguments are an object, as vLLM's server gives them, rather than its
    JSON text. `null_content`: what stands for absent content. `name_in_id`: only the call's id is shown, so
    the function's name must be in it. `short_ids`: call ids must be nine letters and digits. `takes_parts`:
    content may be a list of parts, `needs_parts`: it must be. `reasoning_with_all`: a turn may have
    reasoning beside both text and calls.
    """

    arguments_as_object: bool = True
    null_content: str | None = ""
    name_in_id: bool = False
    short_ids: bool = False
    takes_parts: frozenset[str] = frozenset()
    needs_parts: frozenset[str] = frozenset()
    reasoning_with_all: bool = True

    @classmethod
    def learn(cls, render: Callable[[list[Message], Tools], str]) -> MessageStyle:
        """`render` gives the text of a conversation with tools, empty if the template refuses it."""
        takes_parts, needs_parts = _parts_of_roles(render)

        def conversation(arguments: Any, content: str | None, identity: str, **more: Any) -> list[Message]:
            calls = [{"id": identity, "type": "function", "function": {"name": NAME, "arguments": arguments}}]
            turns = [
                _user("q"),
                {"role": "assistant", "content": content, "tool_calls": calls, **more},
                {"role": "tool", "name": "q", "tool_call_id": identity, "content": "r"},
                {"role": "assistant", "content": "a"},
                _user("q"),
            ]
            return [_in_parts(turn) if turn["role"] in needs_parts else turn for turn in turns]

        given, text = {"k": ARGUMENT}, json.dumps({"k": ARGUMENT}, ensure_ascii=False)
        forms = list(product((IDENTITY, SHORT_IDENTITY), (given, text), (None, "")))
        worth, shown, tools, (identity, arguments, content) = 0, "", None, forms[1]
        for turns in (5, 4, 2):  # some templates know no tools, and some fail only if a turn follows
            for given_tools, form in product((None, TOOLS), forms):
                rendered = render(conversation(form[1], form[2], form[0])[:turns], given_tools)
                if (found := _worth(rendered, form[2])) > worth:
                    worth, shown, tools, (identity, arguments, content) = found, rendered, given_tools, form
            if worth:
                break
        beside = conversation(arguments, "a", identity, **dict.fromkeys(REASONING_FIELDS, "r"))
        return cls(
            arguments_as_object=arguments is given,
            null_content=content,
            name_in_id=worth > 1 and NAME not in shown,
            short_ids=worth > 1 and identity == SHORT_IDENTITY,
            takes_parts=takes_parts,
            needs_parts=needs_parts,
            reasoning_with_all=not shown or any(render(beside[:turns], tools) for turns in (5, 4, 2)),
        )

    def prepare(self, messages: Sequence[Message]) -> list[Message]:
        """Messages in this style. Raises DropError if arguments must be a JSON object but are not."""
        if any("tool_calls" in message for message in messages):
            messages = self._with_calls(messages)
        return [self._with_content(message) for message in messages]

    def rewritten_ids(self, messages: Sequence[Message], prepared: Sequence[Message]) -> int:
        """How many calls have another id in `prepared` than the data gives them."""
        pairs = zip(messages, prepared, strict=True)
        return sum(
            bool(old["id"]) and old["id"] != new["id"]
            for message, ready in pairs
            for old, new in zip(message.get("tool_calls", ()), ready.get("tool_calls", ()), strict=True)
        )

    def _with_content(self, message: Message) -> Message:
        content = message["content"]
        if isinstance(content, list):
            if message["role"] in self.takes_parts:
                return message
            return {**message, "content": joined(content)}
        return _in_parts(message) if message["role"] in self.needs_parts else message

    def _with_calls(self, messages: Sequence[Message]) -> list[Message]:
        numbers = count()
        identities: dict[str, str] = {}
        waiting: list[str] = []
        prepared = []
        for message in messages:
            if "tool_calls" in message:
                calls = [self._call(call, next(numbers)) for call in message["tool_calls"]]
                waiting = [call["id"] for call in calls]
                identities |= {
                    old["id"]: new["id"] for old, new in zip(message["tool_calls"], calls, strict=True)
                }
                content = self.null_content if message["content"] is None else message["content"]
                message = {**message, "content": content, "tool_calls": calls}
                if content and not self.reasoning_with_all:
                    message = {name: value for name, value in message.items() if name not in REASONING_FIELDS}
            elif message["role"] == "tool":
                identity = message.get("tool_call_id")
                if identity in identities:
                    message = {**message, "tool_call_id": identities[identity]}
                elif not identity and self.short_ids and waiting:
                    message = {**message, "tool_call_id": waiting[0]}
                waiting = waiting[1:]
            prepared.append(message)
        return prepared

    def _call(self, call: JsonObject, number: int) -> JsonObject:
        function = call["function"]
        return {
            **call,
            "id": self._identity(call["id"], function["name"], number),
            "function": {**function, "arguments": self._arguments(function["arguments"])},
        }

    def _identity(self, identity: str, name: str, number: int) -> str:
        if self.name_in_id and name not in identity:
            # Kimi K2 writes its ids so, counting the conversation's calls, and takes the function's name from
            # them
            return f"functions.{name}:{number}"
        if self.short_ids and not (len(identity) == 9 and identity.isascii() and identity.isalnum()):
            return hash_bytes(identity.encode(errors="replace"))[:9] if identity else f"call{number:05d}"
        return identity

    def _arguments(self, arguments: Any) -> Any:
        if not self.arguments_as_object:
            return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, dict):
            return arguments
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise DropError(
                "template-refused",
                "a tool call's arguments are not a JSON object, which the chat template needs",
            )
        return parsed


def _parts_of_roles(render: Callable[[list[Message], Tools], str]) -> tuple[frozenset[str], frozenset[str]]:
    """The roles whose content may be a list of parts, and those whose content must be."""
    takes, needs = set(), set()
    for role in ("user", "assistant", "system"):
        for asked in (_user("q"), _user([_part("q")])):
            shown = {}
            for content in (ONE, [_part(ONE), _part(TWO)]):
                turn = {"role": role, "content": content}
                turns = {"user": [turn], "assistant": [asked, turn], "system": [turn, asked]}[role]
                shown[isinstance(content, list)] = render(turns, None) or render(turns, TOOLS)
            if ONE in shown[True] and TWO in shown[True] and "'text'" not in shown[True]:
                takes.add(role)
                if ONE not in shown[False]:
                    needs.add(role)
                break
    return frozenset(takes), frozenset(needs)


def _worth(shown: str, content: str | None) -> int:
    """How well a form of call is shown: refused, not shown, without its argument, in Python's notation, or
    right."""
    if not shown or (content is None and "None" in shown):
        return 0
    if not (NAME in shown or _any_identity(shown)):
        return 1
    if ARGUMENT not in shown:
        return 2
    return 3 if f"'{ARGUMENT}'" in shown or f'\\"{ARGUMENT}' in shown else 4


def _any_identity(shown: str) -> bool:
    return IDENTITY in shown or SHORT_IDENTITY in shown


def _user(content: Any) -> Message:
    return {"role": "user", "content": content}


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _in_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": [_part(content)]} if isinstance(content, str) else message
