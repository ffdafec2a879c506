"""JSON records: written atomically, with sorted keys and a format version. Standard library only."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from eagle3_data import FORMAT_VERSION
from eagle3_data.errors import InputError


def write_json(path: str | os.PathLike[str], record: dict[str, Any]) -> None:
    """Write `record` so that a reader sees either the old file or the whole new one, also after a crash and
    with several writers."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(
        f".{path.name}.{secrets.token_hex(8)}.part"
    )  # random: writers on two machines may have one process number
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(
                {"format_version": FORMAT_VERSION, **record},
                file,
                indent=1,
                sort_keys=True,
                ensure_ascii=False,
            )
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a record. Raises InputError (naming file and remedy) where it is unreadable or of another format
    version."""
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} cannot be read as a JSON record; delete it and run the same command again"
        ) from error
    if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
        raise InputError(
            f"{path} has another format version than {FORMAT_VERSION}; delete it and run the same command"
            " again"
        )
    return record


def find_json(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The record, or None where there is no readable one: for files whose absence is a normal state."""
    try:
        return read_json(path)
    except InputError:
        return None
