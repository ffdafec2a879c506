"""Rows to conversations: field names, role names, content in its various forms. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from eagle3_data.config import Source
from eagle3_data.tokenization.rows import BadRowError, Conversation, DropError

ROLES = {
    "system": "system", "developer": "system",
    "user": "user", "human": "user", "prompter": "user",
    "assistant": "assistant", "gpt": "assistant", "chatgpt": "assistant", "model": "assistant", "bot": "assistant", "bing": "assistant", "bard": "assistant",
    "tool": "tool", "function": "tool", "observation": "tool", "ipython": "tool", "function_response": "tool",
    "function_call": "assistant",
}  # fmt: skip
"""Role names in use, and the four that chat templates know. `function_call` is a ShareGPT turn whose value is a JSON call."""

TURN_FIELDS = ("messages", "conversations", "conversation", "traj")
REASONING_FIELDS = ("reasoning_content", "reasoning")
ID_FIELDS = ("id", "conversation_id", "uuid", "question_id")


def read_row(row: Any, source: Source) -> Conversation:
    """The conversation in a row. Raises BadRowError naming the field or turn at fault, DropError where a well-formed row holds nothing to train."""
    if not isinstance(row, dict):
        raise BadRowError(f"the row is of type {type(row).__name__}; expected an object")
    turns = _turns(row, source)
    if not turns:
        raise DropError("empty", "no turns")
    layout = source.layout if source.layout != "auto" else _layout_of(turns[0])
    read_turn = {"sharegpt": _sharegpt_turn, "messages": _message}[layout]
    messages = [_read(read_turn, turn, number, source) for number, turn in enumerate(turns)]
    return Conversation(messages, _tools(row))


def file_id(row: Any) -> str:
    """The row's own name for itself, if it has one."""
    if isinstance(row, dict):
        for name in ID_FIELDS:
            if isinstance(row.get(name), (str, int)):
                return str(row[name])
    return ""


def _turns(row: dict[str, Any], source: Source) -> list[Any]:
    names = (source.field,) if source.field else TURN_FIELDS
    name = next((name for name in names if name in row), None)
    if name is None:
        raise BadRowError(
            f"there is no field {' or '.join(repr(name) for name in names)}; the fields are {', '.join(map(repr, row))}; set the source's `field`"
        )
    turns = row[name]
    if not isinstance(turns, list):
        raise BadRowError(f"field {name!r} is of type {type(turns).__name__}; expected a list of turns")
    return turns


def _layout_of(turn: Any) -> str:
    return "sharegpt" if isinstance(turn, dict) and "from" in turn else "messages"


def _read(read_turn: Callable[[dict[str, Any], Mapping[str, str]], dict[str, Any]], turn: Any, number: int, source: Source) -> dict[str, Any]:
    try:
        if not isinstance(turn, dict):
            raise BadRowError(f"is of type {type(turn).__name__}; expected an object")
        return read_turn(turn, source.roles)
    except BadRowError as error:
        raise BadRowError(f"turn {number} {error}") from None


def _role(name: Any, mapping: Mapping[str, str], field: str) -> str:
    if not isinstance(name, str):
        raise BadRowError(f"has no {field!r}")
    role = mapping.get(name) or ROLES.get(name.lower())
    if role is None:
        raise BadRowError(f"has the unknown role {name[:40]!r}; map it in the source's `roles`, such as roles: {{{name[:40]}: user}}")
    return role


def _sharegpt_turn(turn: dict[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    role = _role(turn.get("from"), mapping, "from")
    if "value" not in turn:
        raise BadRowError("has no 'value'")
    value = text_of(turn["value"]) or ""
    if str(turn["from"]).lower() == "function_call" and turn["from"] not in mapping:
        return {"role": role, "content": None, "tool_calls": [_tool_call(_parsed(value, "value"))]}
    return {"role": role, "content": value, **_reasoning(turn)}


def _message(turn: dict[str, Any], mapping: Mapping[str, str]) -> dict[str, Any]:
    role = _role(turn.get("role"), mapping, "role")
    calls = turn.get("tool_calls") or ([turn["function_call"]] if turn.get("function_call") else [])
    if "content" not in turn and not calls:
        raise BadRowError("has no 'content'")
    if not isinstance(calls, list):
        raise BadRowError(f"has 'tool_calls' of type {type(calls).__name__}; expected a list")
    content = turn.get("content")
    if role == "tool" and isinstance(content, dict):
        content = json.dumps(content, ensure_ascii=False)
    message: dict[str, Any] = {"role": role, "content": text_of(content), **_reasoning(turn)}
    message.update({name: turn[name] for name in ("name", "tool_call_id") if isinstance(turn.get(name), str)})
    if calls:
        message["tool_calls"] = [_tool_call(call) for call in calls]
    elif message["content"] is None:
        message["content"] = ""
    return message


def text_of(content: Any) -> str | None:
    """Content as text: a string, None, or a list of text parts, joined by a line feed as vLLM's server does. Raises DropError for other parts."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise BadRowError(f"has content of type {type(content).__name__}; expected a string, a list of parts or null")
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            kind = part.get("type") if isinstance(part, dict) else type(part).__name__
            raise BadRowError(f"has a content part of type {str(kind)[:40]!r}; only text can be tokenized")
    return "\n".join(texts)


def _reasoning(turn: dict[str, Any]) -> dict[str, str]:
    """Templates read either name, so both are given."""
    text = next((turn[name] for name in REASONING_FIELDS if isinstance(turn.get(name), str) and turn[name].strip()), None)
    return {} if text is None else dict.fromkeys(REASONING_FIELDS, text)


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRowError("has a tool call without a function name")
    arguments = function.get("arguments", function.get("parameters"))
    if not isinstance(arguments, (str, dict, type(None))):
        raise BadRowError(f"has a tool call with arguments of type {type(arguments).__name__}; expected an object or its JSON text")
    return {
        "id": str(call.get("id") or ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": {} if arguments is None else arguments},
    }


def _tools(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    tools = row.get("tools")
    if isinstance(tools, str):
        tools = _parsed(tools, "tools") if tools.strip() else None
    if not tools:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRowError("field 'tools' is not a list of tool descriptions")
    return tools


def _parsed(text: str, field: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise BadRowError(f"field {field!r} is text that is not JSON") from None
