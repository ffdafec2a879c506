"""Python tracebacks found in log lines. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from eagle3_data.diagnosis.log_lines import LogLine

START = "Traceback (most recent call last):"
GROUP_START = "Exception Group Traceback (most recent call last):"
SUB_EXCEPTION = "+- sub-exception"
"""Stands for the rule above an exception of a group, which has a number and, where it was never raised, no
traceback."""
DIRECT_CAUSE = "The above exception was the direct cause of the following exception:"
IN_HANDLING = "During handling of the above exception, another exception occurred:"
FRAME = re.compile(r'^\s+File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$')
EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_]\w*(?:\.(?:\w+|<locals>|<lambda>))*)(?:: ?(?P<message>.*))?$")
CARETS = re.compile(r"^\s*[\^~]+\s*$")
GROUP_BAR = re.compile(r"^\s+(?:\| ?|\+ (?=Exception Group ))")
GROUP_RULE = re.compile(r"^\s+\+[-+]*-{8,}(?P<number> \d+ -+)?")
HEADS = (START, GROUP_START, SUB_EXCEPTION)
LINKS = (DIRECT_CAUSE, IN_HANDLING)
MESSAGE_LINES = 12
VALIDATION_LINES = 80
VALIDATION_LINK = "For further information visit"
VALIDATION_INPUT = re.compile(r" \[type=\w+, input_value=.*, input_type=\w+\]")
"""What was given, in full and often long: it hides what is wrong with it."""


@dataclass(frozen=True)
class Raised:
    """One exception as a traceback shows it. `first` and `last` are line numbers of the log; `type` is empty
    where the log is cut off before it."""

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
    def cut(self) -> bool:
        return not self.type

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.split(".")[-1]

    @property
    def headline(self) -> str:
        """Type and message, and where the message is empty the statement that raised."""
        text = f"{self.name}: {self.shown_message}" if self.message else f"{self.name} without a message"
        if not self.message and self.source:
            text += f", raised by `{self.source}`"
        return text

    @property
    def shown_message(self) -> str:
        """The message without what pydantic adds to each of its errors."""
        lines = (line for line in self.message.splitlines() if VALIDATION_LINK not in line)
        return VALIDATION_INPUT.sub("", "\n".join(lines))

    @property
    def place(self) -> str:
        return self.frames[-1] if self.frames else ""


@dataclass(frozen=True)
class Chain:
    """Exceptions linked by cause or context, in the order printed: the deepest cause first."""

    raised: tuple[Raised, ...]
    caused: tuple[bool, ...] = ()
    """For each exception after the first: whether it was raised `from` the one before."""


def is_of_traceback(text: str) -> bool:
    """Whether the line is a part of a traceback that says nothing by itself."""
    return text.strip() in (*HEADS, *LINKS) or FRAME.match(text) is not None or CARETS.match(text) is not None


def find_chains(lines: Sequence[LogLine]) -> list[Chain]:
    """The chains of one process's lines. A traceback that is cut off is a chain of its own, of one exception
    without a type."""
    lines = list(_without_bars(lines))
    chains: list[Chain] = []
    position, link = 0, ""
    if _starts_inside(lines):
        raised, position = _read(lines, -1)
        chains += [Chain((raised,))] if raised else []
    while position < len(lines):
        text = lines[position].text.strip()
        if text not in HEADS or (
            text == SUB_EXCEPTION and position + 1 < len(lines) and lines[position + 1].text.strip() in HEADS
        ):
            if text in LINKS:
                link = text
            elif text:
                link = ""
            position += 1
            continue
        raised, position = _read(lines, position)
        if raised is None:
            continue
        if link and chains and not raised.cut:
            chains[-1] = Chain((*chains[-1].raised, raised), (*chains[-1].caused, link == DIRECT_CAUSE))
        else:
            chains.append(Chain((raised,)))
        link = ""
    return chains


def _without_bars(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """The lines as if the exceptions of a group (`except*`, task groups) stood alone: without the bars that
    Python draws beside them."""
    inside = True  # the log may begin in one
    for line in lines:
        if inside and (rule := GROUP_RULE.match(line.text)) is not None:
            yield replace(line, text=SUB_EXCEPTION if rule["number"] else "")
        elif (bar := GROUP_BAR.match(line.text)) is not None and (inside or "+" in bar[0]):
            inside = True
            yield replace(line, text=line.text[bar.end() :])
        else:
            inside = False
            yield line


def _starts_inside(lines: Sequence[LogLine]) -> bool:
    """Whether the lines begin inside a traceback, its head cut off."""
    for line in lines:
        if FRAME.match(line.text) is not None:
            return True
        if line.text.strip() and not line.text.startswith(" "):
            break
    return bool(lines) and lines[0].level == "ERROR" and lines[0].text.startswith("    ")


def _read(lines: Sequence[LogLine], start: int) -> tuple[Raised | None, int]:
    """The traceback whose head is at `start` (-1: cut off), and the position after it; None where nothing of
    it is there."""
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
    head, begin = lines[max(start, 0)], max(start, 0)

    def raised(kind: str, message: str, last: int, end: int) -> Raised:
        shown = [line.text.rstrip() for line in lines[begin:end] if not CARETS.match(line.text)]
        place = (head.process, head.level, head.number, last)
        return Raised(kind, message, tuple(frames), source, *place, "\n".join(shown))

    if position >= len(lines) or (found := EXCEPTION.match(lines[position].text.rstrip())) is None:
        if start < 0 and not frames:
            return None, position
        return raised("", "", lines[position - 1].number, position), position
    rest = list(_more_of_message(lines, position))
    message = "\n".join([found["message"] or "", *(line.text.rstrip() for line in rest)]).strip()
    last, end = rest[-1] if rest else lines[position], position + 1 + len(rest)
    return raised(found["type"], message, last.number, end), end


def _more_of_message(lines: Sequence[LogLine], position: int) -> Iterator[LogLine]:
    """Further lines of a message: of the same log record, or indented. A validation error extends to its last
    link to pydantic's documentation."""
    head = lines[position]
    if "validation error" in head.text and (end := _end_of_validation(lines, position)):
        yield from lines[position + 1 : end]
        return
    for line in lines[position + 1 : position + 1 + MESSAGE_LINES]:
        text = line.text.strip()
        same_record = bool(head.origin) and (line.origin, line.level) == (head.origin, head.level)
        indented = not line.level and line.text.startswith(" ")
        if not text or text in (*HEADS, *LINKS) or not (same_record or indented):
            return
        yield line


def _end_of_validation(lines: Sequence[LogLine], position: int) -> int:
    """The position after the last link of a validation error, 0 where there is none."""
    end = 0
    for number, line in enumerate(lines[position + 1 : position + 1 + VALIDATION_LINES], start=position + 1):
        if line.text.strip() in (*HEADS, *LINKS):
            break
        if VALIDATION_LINK in line.text:
            end = number + 1
    return end


def without_repeats(chains: Sequence[Chain]) -> list[Chain]:
    """Chains in the order of the log; one that repeats an earlier one's exceptions word for word is left
    out."""
    seen: set[tuple[tuple[str, str], ...]] = set()
    kept = []
    for chain in sorted(chains, key=lambda c: c.raised[0].first):
        words = tuple((raised.type, raised.message or raised.place) for raised in chain.raised)
        if words not in seen:
            seen.add(words)
            kept.append(chain)
    return kept


def shortened(raised: Raised, limit: int = 30) -> Raised:
    """The exception with at most `limit` lines of text: the head and the end, where the cause is."""
    lines = raised.text.splitlines()
    if len(lines) <= limit:
        return raised
    return replace(
        raised, text="\n".join([lines[0], f"  ... {len(lines) - limit} lines ...", *lines[-limit + 1 :]])
    )
