"""How a chat template wants tool calls, found by rendering one in different forms; and messages brought into
that form."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from eagle3_data.tokenization.reading.rows import DropError

Message = dict[str, Any]

ARGUMENT, NAME, IDENTITY = "qArgumentq", "qNameq", "qIdentityq"
"""Stand in for parts of a call that are looked for in a rendering. Plain letters, which JSON and Python write
alike."""

VALID_IDENTITY = "call00001"
"""Nine letters and digits, as some templates insist on."""


@dataclass(frozen=True)
class CallStyle:
    """What a template makes of a turn with tool calls.

    `arguments_as_object`: they are an object, as vLLM's server gives them, rather than its JSON text.
    `null_content`: what stands for absent content. `name_in_id`: only the call's id is shown, so the
    function's name must be in it.
    """

    arguments_as_object: bool = True
    null_content: str | None = ""
    name_in_id: bool = False

    @classmethod
    def learn(cls, render: Callable[[list[Message]], str]) -> CallStyle:
        """`render` gives the text of a conversation, empty if the template refuses it."""

        def rendered(arguments: Any, content: str | None) -> str:
            function = {"name": NAME, "arguments": arguments}
            for identity in (IDENTITY, VALID_IDENTITY):
                calls = [{"id": identity, "type": "function", "function": function}]
                if text := render(
                    [
                        {"role": "user", "content": "q"},
                        {"role": "assistant", "content": content, "tool_calls": calls},
                    ]
                ):
                    return text
            return ""

        given, text = {"k": ARGUMENT}, json.dumps({"k": ARGUMENT}, ensure_ascii=False)
        from_object, from_text = rendered(given, ""), rendered(text, "")
        printed_by_python = f"'{ARGUMENT}'" in from_object
        as_object = not from_text or (bool(from_object) and not printed_by_python)
        shown = from_object if as_object else from_text
        without_content = rendered(given if as_object else text, None)
        return cls(
            as_object,
            None if without_content and "None" not in without_content else "",
            IDENTITY in shown and NAME not in shown,
        )

    def prepare(self, messages: Sequence[Message]) -> list[Message]:
        """Messages in this style. Raises DropError if arguments are no JSON object and must be one."""
        if not any("tool_calls" in message for message in messages):
            return list(messages)
        numbers = count()
        identities: dict[str, str] = {}
        prepared = []
        for message in messages:
            if "tool_calls" in message:
                calls = [self._call(call, next(numbers)) for call in message["tool_calls"]]
                identities |= {
                    old["id"]: new["id"] for old, new in zip(message["tool_calls"], calls, strict=True)
                }
                content = self.null_content if message["content"] is None else message["content"]
                message = {**message, "content": content, "tool_calls": calls}
            elif message.get("tool_call_id") in identities:
                message = {**message, "tool_call_id": identities[message["tool_call_id"]]}
            prepared.append(message)
        return prepared

    def _call(self, call: dict[str, Any], number: int) -> dict[str, Any]:
        function = call["function"]
        identity = call["id"]
        if self.name_in_id and function["name"] not in identity:
            # Kimi K2 writes its ids so, counting the conversation's calls, and takes the function's name from
            # them
            identity = f"functions.{function['name']}:{number}"
        return {
            **call,
            "id": identity,
            "function": {**function, "arguments": self._arguments(function["arguments"])},
        }

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
                "a tool call's arguments are no JSON object, which the chat template needs",
            )
        return parsed
