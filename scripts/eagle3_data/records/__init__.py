"""What the stages write for each other: JSON records, read as typed dataclasses. Standard library only."""

from eagle3_data.records.record import (
    START_OVER,
    JsonObject,
    MisfitError,
    Record,
    find_json,
    key,
    open_regular,
    read_json,
    remove,
    write_json,
)

__all__ = [
    "START_OVER",
    "JsonObject",
    "MisfitError",
    "Record",
    "find_json",
    "key",
    "open_regular",
    "read_json",
    "remove",
    "write_json",
]
