"""Rows of token ids that were made elsewhere, and their loss masks."""

from __future__ import annotations

import json
import re
from typing import Any

from eagle3_data.config import Source
from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.fields import IDS, Fields, missing
from eagle3_data.tokenization.reading.messages import SHOWN
from eagle3_data.tokenization.reading.rows import BadRowError, DropError, TokenizedRow

LABELS = "labels"
MASKS = ("loss_mask", "assistant_masks", "completion_mask", LABELS)
IGNORED = -100
"""The label of a token that is not trained, in PyTorch and transformers."""

MASK_LIKE = re.compile(r"^(?!special_tokens_).*(mask|label)", re.IGNORECASE)


def read_tokens(row: JsonObject, source: Source) -> TokenizedRow:
    """Raises BadRowError, or DropError for a row of no tokens."""
    ids = _list(Fields(row, source).required((source.field,) if source.field else IDS, "field"))
    if not isinstance(ids, list) or not all(type(token) is int and token >= 0 for token in ids):
        raise BadRowError("the token ids are not a list of integers from 0 on")
    if not ids:
        raise DropError("empty", "no token ids")
    name = _mask_name(row, source, len(ids))
    return (
        TokenizedRow(ids, _mask(_list(row[name]), name, ids))
        if name
        else TokenizedRow(ids, b"\x01" * len(ids), whole=True)
    )


def _mask_name(row: JsonObject, source: Source, length: int) -> str:
    """The field with the row's mask, empty if it has none. Raises BadRowError where there should be one, or
    may be one under another name."""
    names = (source.mask_field,) if source.mask_field else MASKS
    if found := next((name for name in names if row.get(name) is not None), ""):
        return found
    if source.mask_field or any(name in row for name in names):
        raise missing(row, names, "mask_field")
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


def _list(value: Any) -> Any:
    """A list that a table without lists (CSV) holds as JSON text, or anything else unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


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
