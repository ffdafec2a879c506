"""Records of errors, also of those raised in other processes. Standard library only: the gates
import it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, replace

from eagle3_data.errors import Eagle3DataError, causes_of, errno_of, headline, message_of
from eagle3_data.records import Record, key


@dataclass(frozen=True, kw_only=True)
class Failure(Record):
    """What went wrong, never empty. `causes` are "Type: message", nearest first; `traceback` is that of the
    process in which it happened; `errno` is the system's error number, where there is one. `remedy` and
    `excerpt` come from an engine's log, if it says more.
    """

    kind: str = key("class")
    message: str
    notes: list[str]
    causes: list[str]
    errno: int | None
    traceback: str
    remedy: str | None = None
    excerpt: str | None = None

    @property
    def headline(self) -> str:
        """One line: type and message."""
        return f"{self.kind}: {self.message}"

    @property
    def summary(self) -> str:
        """One line: type, message, and the first cause."""
        return self.headline + (f" (caused by {self.causes[0]})" if self.causes else "")

    def with_note(self, note: str) -> Failure:
        return replace(self, notes=[*self.notes, note])

    def render(self) -> str:
        """Headline, causes, notes, the remedy where one is known, then the traceback."""
        lines = [self.headline]
        lines += [f"  caused by {cause}" for cause in self.causes]
        lines += [f"  note: {note}" for note in self.notes]
        if self.remedy:
            lines.append(f"  to do: {self.remedy}")
        if self.traceback:
            lines += ["", self.traceback.rstrip()]
        return "\n".join(lines)


def describe_exception(error: BaseException) -> Failure:
    """The failure that `error` is, with all its causes and notes."""
    chain = [error, *causes_of(error)]
    return Failure(
        kind=type(error).__name__,
        message=message_of(error),
        notes=[str(note) for e in chain for note in getattr(e, "__notes__", [])],
        causes=[headline(cause) for cause in chain[1:]],
        errno=next((number for e in chain if (number := errno_of(e)) is not None), None),
        traceback="".join(traceback.format_exception(error)),
    )


def describe_situation(
    kind: type[Eagle3DataError], message: str, *, traceback: str = "", causes: tuple[str, ...] = ()
) -> Failure:
    """The failure of something that was not raised here: a dead process, a missing file, a time-out."""
    return Failure(
        kind=kind.__name__,
        message=message,
        notes=[],
        causes=list(causes),
        errno=None,
        traceback=traceback,
    )
