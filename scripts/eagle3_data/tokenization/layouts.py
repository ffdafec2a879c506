"""Rows to what they hold: a conversation, formatted text, or token ids; by the source's layout or by the row's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eagle3_data.config import Source
from eagle3_data.tokenization.messages import openai_message, parsed, sharegpt_message
from eagle3_data.tokenization.rows import BadRowError, Content, Conversation, DropError, FormattedText, TokenizedRow

TURNS = ("messages", "conversations", "conversation", "traj")
PROMPTS = ("prompt", "question")
RESPONSES = ("response", "completion", "answer", "output")
TEXTS = ("text",)
IDS = ("input_ids", "token_ids")
OWN_NAMES = ("id", "conversation_id", "uuid", "question_id")

Reader = Callable[[dict[str, Any], Source], Content]


def read_row(row: Any, source: Source) -> Content:
    """What the row holds. Raises BadRowError naming the field or turn at fault, DropError where there is nothing to train on."""
    if not isinstance(row, dict):
        raise BadRowError(f"the row is of type {type(row).__name__}; expected an object")
    layout = source.layout if source.layout != "auto" else _layout_of(row, source)
    return READERS[layout](row, source)


def own_name(row: Any) -> str:
    """The row's name for itself in its file, if it has one."""
    if isinstance(row, dict):
        for name in OWN_NAMES:
            if isinstance(row.get(name), (str, int)):
                return str(row[name]).encode(errors="replace").decode()
    return ""


def _layout_of(row: dict[str, Any], source: Source) -> str:
    """Told by the value of the source's `field`, or by which of the usual fields there are."""
    if source.field:
        value = _field(row, (source.field,), "field")
        if isinstance(value, str):
            return "prompt_response" if source.response_field or any(name in row for name in RESPONSES) else "text"
        return "tokens" if isinstance(value, list) and value and isinstance(value[0], int) else "messages"
    for names, layout in ((TURNS, "messages"), (IDS, "tokens"), (PROMPTS, "prompt_response"), (TEXTS, "text")):
        if any(name in row for name in names):
            return layout
    return "messages"


def _conversation(row: dict[str, Any], source: Source) -> Conversation:
    turns = _field(row, (source.field,) if source.field else TURNS, "field")
    turns = parsed(turns, source.field or "turns")
    if not isinstance(turns, list):
        raise BadRowError(f"the turns are of type {type(turns).__name__}; expected a list")
    return Conversation(_messages(turns, source), _tools(row, source))


def _prompt_response(row: dict[str, Any], source: Source) -> Conversation:
    prompt = _field(row, (source.field,) if source.field else PROMPTS, "field")
    response = _field(row, (source.response_field,) if source.response_field else RESPONSES, "response_field")
    system = [{"role": "system", "content": row["system"]}] if isinstance(row.get("system"), str) and row["system"] else []
    turns = [*system, *_as_turns(prompt, "user"), *_as_turns(response, "assistant")]
    return Conversation(_messages(turns, source), _tools(row, source))


def _as_turns(value: Any, role: str) -> list[Any]:
    """A prompt or response given as text, or as a list of messages."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise BadRowError(f"the {role}'s part is of type {type(value).__name__}; expected text or a list of messages")
    return value


def _text(row: dict[str, Any], source: Source) -> FormattedText:
    text = _field(row, (source.field,) if source.field else TEXTS, "field")
    if not isinstance(text, str):
        raise BadRowError(f"the text is of type {type(text).__name__}; expected a string")
    if not text.strip():
        raise DropError("empty", "no text")
    return FormattedText(text)


def _tokens(row: dict[str, Any], source: Source) -> TokenizedRow:
    ids = _field(row, (source.field,) if source.field else IDS, "field")
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise BadRowError("the token ids are not a list of integers from 0 on")
    if not ids:
        raise DropError("empty", "no token ids")
    mask = row.get(source.mask_field)
    if mask is None:
        return TokenizedRow(ids, b"\x01" * len(ids))
    if not isinstance(mask, list) or not all(type(flag) in (int, bool) and flag in (0, 1) for flag in mask):
        raise BadRowError(f"field {source.mask_field!r} is not a list of 0 and 1")
    if len(mask) != len(ids):
        raise BadRowError(f"field {source.mask_field!r} has {len(mask)} elements for {len(ids)} token ids")
    return TokenizedRow(ids, bytes(mask))


READERS: Mapping[str, Reader] = {
    "sharegpt": _conversation,
    "messages": _conversation,
    "prompt_response": _prompt_response,
    "text": _text,
    "tokens": _tokens,
}


def _field(row: dict[str, Any], names: tuple[str, ...], key: str) -> Any:
    for name in names:
        if name in row:
            return row[name]
    wanted = " or ".join(map(repr, names))
    raise BadRowError(f"there is no field {wanted}; the fields are {', '.join(repr(name)[:60] for name in row)}; set the source's `{key}` or `layout`")


def _messages(turns: list[Any], source: Source) -> list[dict[str, Any]]:
    if not turns:
        raise DropError("empty", "no turns")
    return [_message(turn, number, source) for number, turn in enumerate(turns)]


def _message(turn: Any, number: int, source: Source) -> dict[str, Any]:
    try:
        if not isinstance(turn, dict):
            raise BadRowError(f"is of type {type(turn).__name__}; expected an object")
        sharegpt = source.layout == "sharegpt" or (source.layout == "auto" and "from" in turn and "role" not in turn)
        return (sharegpt_message if sharegpt else openai_message)(turn, source.roles)
    except BadRowError as error:
        raise BadRowError(f"turn {number} {error}") from None


def _tools(row: dict[str, Any], source: Source) -> list[dict[str, Any]] | None:
    tools = row.get(source.tools_field)
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return None
    tools = parsed(tools, source.tools_field)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRowError(f"field {source.tools_field!r} is not a list of tool descriptions")
    return tools or None
