"""Turns of a conversation in the forms that files have, to messages in the one form that chat templates
know."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.rows import BadRowError

ROLES = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant",
    "bot": "assistant", "bing": "assistant", "bard": "assistant", "tool": "tool", "function": "tool",
    "observation": "tool", "ipython": "tool", "function_response": "tool", "function_call": "assistant",
}  # fmt: skip
"""Role names in use, and the four that chat templates know. `function_call` is a ShareGPT turn whose value is
a JSON call."""

REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")
"""Names under which files give, and templates read, a turn's reasoning."""

SHOWN = 40
"""Characters of a name from the data that an error message repeats."""


def sharegpt_message(turn: JsonObject, roles: Mapping[str, str]) -> JsonObject:
    """A message from `{"from": ..., "value": ...}`. Raises BadRowError."""
    role = _role(turn, "from", roles)
    if "value" not in turn:
        raise BadRowError("has no 'value'")
    if str(turn["from"]).lower() == "function_call" and turn["from"] not in roles:
        return {"role": role, "content": None, "tool_calls": [_tool_call(parsed(turn["value"], "value"))]}
    return {"role": role, "content": _text_or_empty(role, turn["value"]), **_reasoning(turn)}


def openai_message(turn: JsonObject, roles: Mapping[str, str]) -> JsonObject:
    """A message from `{"role": ..., "content": ..., "tool_calls": [...]}`, also with the older
    `function_call`. Raises BadRowError."""
    role = _role(turn, "role", roles)
    calls = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    if not isinstance(calls, list):
        raise BadRowError(f"has 'tool_calls' of type {type(calls).__name__}; expected a list")
    if "content" not in turn and not calls:
        raise BadRowError("has no 'content'")
    content = turn.get("content")
    if role == "tool" and isinstance(content, dict):
        content = json.dumps(content, ensure_ascii=False)
    message: JsonObject = {"role": role, **_reasoning(turn)}
    message["content"] = text_of(content) if calls else _text_or_empty(role, content)
    message.update({name: turn[name] for name in ("name", "tool_call_id") if isinstance(turn.get(name), str)})
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    return message


def text_of(content: Any) -> str | list[dict[str, str]] | None:
    """Content as text, None if there is none, or a list of text parts if there are several: only the chat
    template knows how they are joined. Raises BadRowError."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRowError(
            f"has content of type {type(content).__name__}; expected a string, a list of parts or null"
        )
    texts = []
    for part in content:
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            if kind == "text":
                raise BadRowError(
                    f"has a content part of type 'text' whose text is a {type(text).__name__}; expected a"
                    " string"
                )
            raise BadRowError(f"has a content part of type {str(kind)[:SHOWN]!r}; only text can be tokenized")
        texts.append(text)
    return "".join(texts) if len(texts) < 2 else [{"type": "text", "text": text} for text in texts]


def parsed(text: Any, field: str) -> Any:
    """JSON text, or anything else unchanged. Raises BadRowError."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        python = (
            "; it looks like Python's notation"
            if text.lstrip()[:2] in ("[{", "{'", "['") and "'" in text
            else ""
        )
        raise BadRowError(f"has a field {field!r} whose text is not JSON{python}") from None


def joined(content: str | list[dict[str, str]] | None) -> str:
    """Content as one text, parts joined by a line feed as vLLM's server does for templates that take none."""
    return "\n".join(part["text"] for part in content) if isinstance(content, list) else content or ""


def _text_or_empty(role: str, content: Any) -> str | list[dict[str, str]]:
    text = text_of(content)
    if text is None and role in ("system", "user"):
        raise BadRowError("has null content")
    return text or ""


def _role(turn: JsonObject, field: str, roles: Mapping[str, str]) -> str:
    name = turn.get(field)
    if not isinstance(name, str):
        raise BadRowError(f"has no {field!r}")
    role = roles.get(name) or ROLES.get(name.lower())
    if role is None:
        raise BadRowError(
            f"has the unknown role {name[:SHOWN]!r}; map it in the source's `roles`, such as roles:"
            f" {{{name[:SHOWN]}: user}}"
        )
    return role


def _reasoning(turn: JsonObject) -> dict[str, str]:
    """Templates read either name, so both are given."""
    if not any(name in turn for name in REASONING_FIELDS):
        return {}
    text = next(
        (turn[name] for name in REASONING_FIELDS if isinstance(turn.get(name), str) and turn[name].strip()),
        None,
    )
    return {} if text is None else dict.fromkeys(REASONING_FIELDS, text)


def _tool_call(call: Any) -> JsonObject:
    function = (call.get("function") or call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRowError("has a tool call without a function name")
    arguments = next(
        (function[name] for name in ("arguments", "parameters") if function.get(name) is not None), None
    )
    if not isinstance(arguments, (str, dict, type(None))):
        raise BadRowError(
            f"has a tool call with arguments of type {type(arguments).__name__}; expected an object or its"
            " JSON text"
        )
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": {} if arguments is None else arguments},
    }
