"""The errors of this package, and helpers to describe any error. Standard library only: the gates import
it."""

from __future__ import annotations

import errno
import re

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
    """The system's error number. Libraries in Rust (safetensors) give it only in the text: "... (os error
    28)"."""
    if isinstance(error, OSError):
        return error.errno
    found = OS_ERROR.search(str(error))
    return int(found[1]) if found else None
