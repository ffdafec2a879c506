"""Images, video and audio of a row, which cannot be tokenized: where they are, and rows without them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from eagle3_data.records import JsonObject

FIELDS = frozenset(
    f"{kind}{suffix}"
    for kind in ("image", "img", "video", "audio", "picture", "photo")
    for suffix in ("", "s", "_path", "_paths", "_file", "_files", "_url", "_urls", "_id", "_ids", "_base64")
) | {"pixel_values", "input_features", "input_values", "mm_data", "multi_modal_data"}
"""Names of fields, of a row or of a turn, that hold or name media."""

PARTS = ("image", "video", "audio")
"""Words of which a content part's type holds one: `image_url`, `input_audio`, `video` and so on."""

PLACEHOLDER = re.compile(
    r"<(?P<tag>image|video|audio|img)>|<(?:image|video|audio|img)_?(?:\d+|placeholder|pad|soft_token|token)>"
    r"|<\|(?:image|video|audio|vision)(?:_?\w+)?\|>|<start_of_image>|\[IMG(?:_\d+)?\]|<ImageHere>",
    re.IGNORECASE,
)
"""What stands in a text for media: LLaVA's and LLaMA-Factory's `<image>`, and the tokens of known models."""


def field_with_media(row: JsonObject) -> str:
    """The first field of a row or turn that names media and is not empty; empty if there is none."""
    return next((name for name, value in row.items() if name.lower() in FIELDS and _is_given(value)), "")


def media_in_turns(turns: Iterable[Any]) -> str:
    """Where in turns, as the file has them, there are media; empty if nowhere."""
    names = {name.lower() for turn in turns if isinstance(turn, dict) for name in turn}
    fields = not FIELDS.isdisjoint(names)
    for number, turn in enumerate(turns):
        if not isinstance(turn, dict):
            continue
        if fields and (name := field_with_media(turn)):
            return f"field {name!r} of turn {number}"
        content = turn.get("content", turn.get("value"))
        if isinstance(content, list) and (kind := next(filter(None, map(_media_type, content)), "")):
            return f"a content part of type {kind!r} in turn {number}"
    return ""


def without_media_parts(turn: Any) -> Any:
    """The turn without the media parts of its content."""
    if not isinstance(turn, dict):
        return turn
    return {
        name: (
            [part for part in value if not _media_type(part)]
            if name in ("content", "value") and isinstance(value, list)
            else value
        )
        for name, value in turn.items()
    }


def placeholder_in(text: str) -> str:
    """The first placeholder of media in a text; empty if there is none. A tag that is closed again is part of
    a web page, but for `<img>`, which in a web page never is, and which some models put around a path."""
    if "<" not in text and "[IMG" not in text:
        return ""
    for found in PLACEHOLDER.finditer(text):
        tag = found["tag"]
        if not tag or (f"</{tag}>" in text) == (tag.lower() == "img"):
            return found[0]
    return ""


def _media_type(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) and any(word in kind.lower() for word in PARTS) else ""


def _is_given(value: Any) -> bool:
    """Whether there is anything in a value, however deep: tables fill what a row lacks with nulls."""
    if isinstance(value, dict):
        return any(map(_is_given, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_is_given, value))
    return value is not None and value is not False and value != ""
