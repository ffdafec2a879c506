"""The errors of this package and the one way to report any error. Standard library only: the gates import
it."""

from __future__ import annotations

import errno
import re
import traceback
from typing import Any

NO_ROOM = {errno.ENOSPC, errno.EDQUOT}
OS_ERROR = re.compile(r"\(os error (\d+)\)")


class Eagle3DataError(Exception):
    """Base of the errors whose message says what is wrong, where, and what to do about it."""


class ConfigError(Eagle3DataError):
    """The configuration is wrong."""


class InputError(Eagle3DataError):
    """A file the user gave (conversations, target model, tokenizer) is missing or unusable."""


class CompatibilityError(Eagle3DataError):
    """The installed vLLM cannot extract the requested states from this target model."""


class SampleError(Eagle3DataError):
    """One sample cannot be extracted; the others can."""


class StorageError(Eagle3DataError):
    """There is no room for more states."""


class EngineError(Eagle3DataError):
    """The engine did not start, died, or stopped answering."""


def message_of(error: BaseException) -> str:
    """The error's message, never empty: `str` of many errors (a bare assert, a dead process) is the empty
    string."""
    return str(error).strip() or repr(error)


def headline(error: BaseException) -> str:
    """One line: type and message."""
    return f"{type(error).__name__}: {message_of(error)}"


def causes_of(error: BaseException) -> list[BaseException]:
    """The errors behind `error`, nearest first: explicit causes, else the errors it was raised in the
    handling of."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None:
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        if current is None or current in chain:
            break
        chain.append(current)
    return chain


def errno_of(error: BaseException) -> int | None:
    """The system's error number, also of libraries in Rust (safetensors), which tell it in words: "... (os
    error 28)"."""
    if isinstance(error, OSError):
        return error.errno
    found = OS_ERROR.search(str(error))
    return int(found[1]) if found else None


def describe_exception(error: BaseException) -> dict[str, Any]:
    """A JSON-ready failure description that is never empty.

    Returns a dict with `class`, `message`, `notes` (list of str), `causes` (list of "Type: message", nearest
    first), `errno` (int or None) and `traceback` (str; for an error received from another process, that
    process's text).
    """
    chain = [error, *causes_of(error)]
    return {
        "class": type(error).__name__,
        "message": message_of(error),
        "notes": [str(note) for e in chain for note in getattr(e, "__notes__", [])],
        "causes": [headline(cause) for cause in chain[1:]],
        "errno": next((number for e in chain if (number := errno_of(e)) is not None), None),
        "traceback": "".join(traceback.format_exception(error)),
    }


def describe_situation(
    kind: type[Eagle3DataError], message: str, *, traceback: str = "", causes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A failure description of something that was not raised here: a dead process, a missing file, a
    time-out."""
    return {
        "class": kind.__name__,
        "message": message,
        "notes": [],
        "causes": list(causes),
        "errno": None,
        "traceback": traceback,
    }


def failure_headline(failure: dict[str, Any]) -> str:
    """One line of a failure description: type, message, and the first cause."""
    causes = failure.get("causes") or ()
    return f"{failure['class']}: {failure['message']}" + (f" (caused by {causes[0]})" if causes else "")


def render_failure(failure: dict[str, Any]) -> str:
    """A failure description as text: headline, causes, notes, the remedy where one is known, then the
    traceback."""
    lines = [f"{failure['class']}: {failure['message']}"]
    lines += [f"  caused by {cause}" for cause in failure.get("causes", ())]
    lines += [f"  note: {note}" for note in failure.get("notes", ())]
    if failure.get("remedy"):
        lines.append(f"  to do: {failure['remedy']}")
    if failure.get("traceback"):
        lines += ["", failure["traceback"].rstrip()]
    return "\n".join(lines)
