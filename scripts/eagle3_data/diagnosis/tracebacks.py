"""Python tracebacks found in log lines. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from eagle3_data.diagnosis.log_lines import LogLine

START = "Traceback (most recent call last):"
DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
IN_HANDLING = "During handling of the above exception, another exception occurred:"
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_]\w*(?:\.\w+)*)(?:: ?(?P<message>.*))?$")
CARETS = re.compile(r"^\s*[\^~]+\s*$")
MESSAGE_LINES = 12


@dataclass(frozen=True)
class Raised:
    """One exception as a traceback shows it. `first` and `last` are line numbers of the log."""

    type: str
    message: str
    frames: tuple[str, ...]
    source: str
    process: str
    level: str
    first: int
    last: int
    text: str

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.split(".")[-1]

    @property
    def headline(self) -> str:
        """Type and message, and where the message is empty the statement that raised."""
        told = f"{self.name}: {self.message}" if self.message else f"{self.name} without a message"
        if not self.message and self.source:
            told += f", raised by `{self.source}`"
        return told

    @property
    def place(self) -> str:
        return self.frames[-1] if self.frames else ""


@dataclass(frozen=True)
class Chain:
    """Exceptions linked by cause or context, in the order printed: the deepest cause first."""

    raised: tuple[Raised, ...]
    caused: tuple[bool, ...] = ()
    """For each exception after the first: whether it was raised `from` the one before."""


def find_chains(lines: Sequence[LogLine]) -> list[Chain]:
    """The chains of one process's lines."""
    chains: list[Chain] = []
    position, link = 0, ""
    while position < len(lines):
        text = lines[position].text.strip()
        if text != START:
            if text in (DIRECT_CAUSE, IN_HANDLING):
                link = text
            elif text:
                link = ""
            position += 1
            continue
        raised, position = _read(lines, position)
        if raised is None:
            continue
        if link and chains:
            chains[-1] = Chain((*chains[-1].raised, raised), (*chains[-1].caused, link == DIRECT_CAUSE))
        else:
            chains.append(Chain((raised,)))
        link = ""
    return chains


def _read(lines: Sequence[LogLine], start: int) -> tuple[Raised | None, int]:
    """The traceback that starts at `start`, and the position after it; None where it is cut off."""
    frames: list[str] = []
    source = ""
    position = start + 1
    while position < len(lines):
        text = lines[position].text
        if (frame := FRAME.match(text)) is not None:
            frames.append(f"{frame['file']}:{frame['line']} in {frame['function']}")
            source = ""
        elif text.startswith("  ") and not CARETS.match(text):
            source = source or text.strip()
        elif not text.startswith(" ") and text.strip():
            break
        position += 1
    if position >= len(lines) or (found := EXCEPTION.match(lines[position].text.rstrip())) is None:
        return None, max(position, start + 1)
    rest = list(_more_of_message(lines, position))
    message = "\n".join([found["message"] or "", *(line.text.rstrip() for line in rest)]).strip()
    last = rest[-1] if rest else lines[position]
    shown = [line.text.rstrip() for line in lines[start : position + 1 + len(rest)] if not CARETS.match(line.text)]
    head = lines[start]
    raised = Raised(found["type"], message, tuple(frames), source, head.process, head.level, head.number, last.number, "\n".join(shown))
    return raised, position + 1 + len(rest)


def _more_of_message(lines: Sequence[LogLine], position: int) -> Iterator[LogLine]:
    """Further lines of a message: of the same log record, or indented. Validation errors name a field flush left, then indent."""
    head = lines[position]
    validation = "validation error" in head.text
    for line in lines[position + 1 : position + 1 + MESSAGE_LINES]:
        text = line.text.strip()
        same_record = bool(head.origin) and (line.origin, line.level) == (head.origin, head.level)
        indented = not line.level and line.text.startswith(" ")
        field = validation and not line.level and re.fullmatch(r"[\w.]+", text) is not None
        if not text or text in (START, DIRECT_CAUSE, IN_HANDLING) or not (same_record or indented or field):
            return
        yield line


def without_repeats(chains: Sequence[Chain]) -> list[Chain]:
    """Chains in the order of the log; one that repeats an earlier one's exceptions word for word is left out."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    kept = []
    for chain in sorted(chains, key=lambda c: c.raised[0].first):
        words = tuple((raised.type, raised.message) for raised in chain.raised)
        if words not in seen:
            seen.add(words)
            kept.append(chain)
    return kept


def shortened(raised: Raised, limit: int = 30) -> Raised:
    """The exception with at most `limit` lines of text: the head and the end, where the cause is."""
    lines = raised.text.splitlines()
    if len(lines) <= limit:
        return raised
    return replace(raised, text="\n".join([lines[0], f"  ... {len(lines) - limit} lines ...", *lines[-limit + 1 :]]))
