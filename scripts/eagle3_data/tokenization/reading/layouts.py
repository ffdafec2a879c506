"""Rows to what they hold: a conversation, formatted text, or token ids; by the source's layout or by the
row's fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eagle3_data.config import Source
from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.conversations import read_prompt_response, read_turns
from eagle3_data.tokenization.reading.fields import (
    CHOSEN,
    IDS,
    INPUTS,
    PROMPTS,
    RESPONSES,
    TEXTS,
    TURNS,
    WANTED_LABELS,
    Fields,
)
from eagle3_data.tokenization.reading.media import field_with_media
from eagle3_data.tokenization.reading.rows import BadRowError, Content, DropError, FormattedText, Notice
from eagle3_data.tokenization.reading.token_rows import read_tokens

OWN_NAMES = ("id", "conversation_id", "uuid", "question_id", "prompt_id")
ROW_FLAGS = ("train", "trainable", "weight")
"""Fields of a row that are false, or 0, where none of it is to be trained."""

Reader = Callable[[JsonObject, Source], Content]


def read_row(row: Any, source: Source) -> Content:
    """What the row holds. Raises BadRowError naming the field or turn at fault, DropError where there is
    nothing to train on, or what is there is not to be trained."""
    if not isinstance(row, dict):
        raise BadRowError(
            f'the row is a {type(row).__name__}; rows must be JSON objects, such as {{"messages": [...]}}'
        )
    for name in WANTED_LABELS:
        if row.get(name) is False or str(row.get(name)) in ("False", "false"):
            raise DropError("rejected-answer", f"field {name!r} is false")
    for name in ROW_FLAGS:
        if isinstance(row.get(name), (bool, int, float)) and not row[name]:
            raise DropError("untrained", f"field {name!r} of the row is {row[name]}")
    if source.multimodal == "drop" and (name := field_with_media(row)):
        raise DropError("multimodal", f"field {name!r}")
    layout = source.layout if source.layout != "auto" else _layout_of(row, source)
    return READERS[layout](row, source)


def own_name(row: Any) -> str:
    """The row's name for itself in its file, if it has one."""
    if isinstance(row, dict):
        for name in OWN_NAMES:
            if isinstance(row.get(name), (str, int)):
                return str(row[name]).encode(errors="replace").decode()
    return ""


def _layout_of(row: JsonObject, source: Source) -> str:
    """Decided by the value of the source's `field`, or by which of the usual fields are present."""

    def has(*names: str) -> bool:
        return any(row.get(name) is not None for name in names)

    answered = bool(source.response_field) or has(*RESPONSES, CHOSEN)
    if source.field:
        value = Fields(row, source).required((source.field,), "field")
        if isinstance(value, str) and not _is_json_of_turns(value):
            return "prompt_response" if answered else "text"
        return "tokens" if isinstance(value, list) and value and isinstance(value[0], int) else "messages"
    if has(*TURNS):
        return "messages"
    if has(*IDS):
        return "tokens"
    if has(*TEXTS) and (source.trained == "all" or not (answered and has(*PROMPTS))):
        return "text"
    if has(*PROMPTS, *(INPUTS if answered else ())):
        return "prompt_response"
    return "messages"


def _is_json_of_turns(text: str) -> bool:
    """Whether a text holds turns, as it does in a CSV file."""
    return text.lstrip().startswith("[{") and text.rstrip().endswith("}]")


def _text(row: JsonObject, source: Source) -> FormattedText:
    fields = Fields(row, source)
    text = fields.required((source.field,) if source.field else TEXTS, "field")
    if not isinstance(text, str):
        raise BadRowError(f"the text is of type {type(text).__name__}; expected a string")
    if not text.strip():
        raise DropError("empty", "no text")
    media = (Notice("text-of-multimodal"),) if field_with_media(row) else ()
    return FormattedText(text, (*media, *fields.ignored([text], as_one=True)))


READERS: Mapping[str, Reader] = {
    "sharegpt": read_turns,
    "messages": read_turns,
    "prompt_response": read_prompt_response,
    "text": _text,
    "tokens": read_tokens,
}
