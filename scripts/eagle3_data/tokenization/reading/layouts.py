"""Rows to what they hold: a conversation, formatted text, or token ids; by the source's layout or by the
row's fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from eagle3_data.config import Source
from eagle3_data.tokenization.reading.messages import SHOWN, openai_message, parsed, sharegpt_message
from eagle3_data.tokenization.reading.rows import (
    BadRowError,
    Content,
    Conversation,
    DropError,
    FormattedText,
    TokenizedRow,
)

TURNS = ("messages", "conversations", "conversation", "traj")
PROMPTS = ("prompt", "question")
RESPONSES = ("response", "completion", "answer", "output")
TEXTS = ("text",)
IDS = ("input_ids", "token_ids")
LABELS = "labels"
MASKS = ("loss_mask", "assistant_masks", "completion_mask", LABELS)
IGNORED = -100
"""The label of a token that is not trained, in PyTorch and transformers."""

MASK_LIKE = re.compile(r"^(?!special_tokens_).*(mask|label)", re.IGNORECASE)
OWN_NAMES = ("id", "conversation_id", "uuid", "question_id")

Reader = Callable[[dict[str, Any], Source], Content]


def read_row(row: Any, source: Source) -> Content:
    """What the row holds. Raises BadRowError naming the field or turn at fault, DropError where there is
    nothing to train on."""
    if not isinstance(row, dict):
        raise BadRowError(
            f'the row is a {type(row).__name__}; rows must be JSON objects, such as {{"messages": [...]}}'
        )
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
            return (
                "prompt_response"
                if source.response_field or any(row.get(name) is not None for name in RESPONSES)
                else "text"
            )
        return "tokens" if isinstance(value, list) and value and isinstance(value[0], int) else "messages"
    for names, layout in (
        (TURNS, "messages"),
        (IDS, "tokens"),
        (PROMPTS, "prompt_response"),
        (TEXTS, "text"),
    ):
        if any(row.get(name) is not None for name in names):
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
    system = (
        [{"role": "system", "content": row["system"]}]
        if isinstance(row.get("system"), str) and row["system"]
        else []
    )
    turns = [*system, *_as_turns(prompt, "user"), *_as_turns(response, "assistant")]
    return Conversation(_messages(turns, source), _tools(row, source))


def _as_turns(value: Any, role: str) -> list[Any]:
    """A prompt or response given as text, or as a list of messages."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if not isinstance(value, list):
        raise BadRowError(
            f"the {role}'s part is of type {type(value).__name__}; expected text or a list of messages"
        )
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
    name = _mask_name(row, source, len(ids))
    return (
        TokenizedRow(ids, _mask(row[name], name, ids))
        if name
        else TokenizedRow(ids, b"\x01" * len(ids), whole=True)
    )


def _mask_name(row: dict[str, Any], source: Source, length: int) -> str:
    """The field with the row's mask, empty if it has none. Raises BadRowError where there should be one, or
    may be one under another name."""
    names = (source.mask_field,) if source.mask_field else MASKS
    if found := next((name for name in names if row.get(name) is not None), ""):
        return found
    if source.mask_field or any(name in row for name in names):
        raise _missing(row, names, "mask_field")
    for name, value in row.items():
        if name == "attention_mask":
            if isinstance(value, list) and 0 in value:
                raise BadRowError(
                    f"field {name!r} has zeros, so the row is padded, and has no loss mask; take the padding"
                    " out, or add a `loss_mask`"
                )
        elif MASK_LIKE.search(name) and (value is None or (isinstance(value, list) and len(value) == length)):
            raise BadRowError(
                f"field {name[:SHOWN]!r} looks like a loss mask; name it in the source's `mask_field`, or"
                " take it out"
            )
    return ""


def _mask(values: Any, name: str, ids: list[int]) -> bytes:
    """The loss mask [T] that a field with 0 and 1, or with labels, stands for."""
    if not isinstance(values, list) or not all(type(value) in (int, bool) for value in values):
        raise BadRowError(f"field {name!r} is not a list of integers")
    if len(values) != len(ids):
        raise BadRowError(f"field {name!r} has {len(values)} elements for {len(ids)} token ids")
    if name != LABELS and set(values) <= {0, 1}:
        return bytes(values)
    if name in MASKS and name != LABELS:
        raise BadRowError(f"field {name!r} is not a list of 0 and 1")
    for number, (label, token) in enumerate(zip(values, ids, strict=True)):
        if label not in (token, IGNORED):
            raise BadRowError(
                f"field {name!r} is not a list of labels: token {number} has {label}, neither its own id nor"
                f" {IGNORED}"
            )
    return bytes(map(IGNORED.__ne__, values))


READERS: Mapping[str, Reader] = {
    "sharegpt": _conversation,
    "messages": _conversation,
    "prompt_response": _prompt_response,
    "text": _text,
    "tokens": _tokens,
}


def _field(row: dict[str, Any], names: tuple[str, ...], key: str) -> Any:
    """The first of these fields that is not null."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise _missing(row, names, key)


def _missing(row: dict[str, Any], names: tuple[str, ...], key: str) -> BadRowError:
    if present := next((name for name in names if name in row), ""):
        return BadRowError(f"field {present!r} is null")
    wanted = " or ".join(map(repr, names))
    return BadRowError(
        f"there is no field {wanted}; the fields are {', '.join(repr(name)[:60] for name in row)}; set the"
        f" source's `{key}` or `layout`"
    )


def _messages(turns: list[Any], source: Source) -> list[dict[str, Any]]:
    if not turns:
        raise DropError("empty", "no turns")
    return [_message(turn, number, source) for number, turn in enumerate(turns)]


def _message(turn: Any, number: int, source: Source) -> dict[str, Any]:
    try:
        if not isinstance(turn, dict):
            raise BadRowError(f"is of type {type(turn).__name__}; expected an object")
        sharegpt = source.layout == "sharegpt" or (
            source.layout == "auto" and "from" in turn and "role" not in turn
        )
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
