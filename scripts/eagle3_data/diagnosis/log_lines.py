"""Lines of a log of several processes, taken apart: which process, which level, what text. Standard library
only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

TERMINAL_CODES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
PROCESS = re.compile(r"^\((?P<name>[^()]*\bpid=\d+[^()]*)\) ?")
RANK = re.compile(r"^\[rank\d+\]: ?")
RECORD = re.compile(
    r"^(?:\[[\d\- :,.T]+\] )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)"
    r"(?: (?P<time>[\d\-]+ [\d:.,]+) \[(?P<origin>[\w./<>-]+:\d+)\]| (?P<plain_origin>[\w./<>-]+:\d+):) ?"
)
BARE_LEVEL = re.compile(r"^(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
"""A level without time and place is some script's own word: it counts, and it stays part of the text."""


@dataclass(frozen=True)
class LogLine:
    """One line. `process` is empty where the line does not name its own, `level` and `origin` where it is no
    log record."""

    number: int
    process: str
    level: str
    origin: str
    text: str


def parse_lines(text: str) -> list[LogLine]:
    """Every line of the log; what a progress bar overwrote counts as lines of its own."""
    return [_parse(number, line) for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1)]


def _parse(number: int, line: str) -> LogLine:
    line = TERMINAL_CODES.sub("", line)
    process = ""
    while (found := PROCESS.match(line)) is not None:
        process, line = found["name"], line[found.end() :]
    line = RANK.sub("", line)
    if (record := RECORD.match(line)) is not None:
        return LogLine(
            number, process, record["level"], record["origin"] or record["plain_origin"], line[record.end() :]
        )
    bare = BARE_LEVEL.match(line)
    return LogLine(number, process, bare["level"] if bare else "", "", line)


def by_process(lines: Iterable[LogLine]) -> dict[str, list[LogLine]]:
    """The lines of each process in order: what several processes print at once is interleaved."""
    streams: dict[str, list[LogLine]] = {}
    for line in lines:
        streams.setdefault(line.process, []).append(line)
    return streams
