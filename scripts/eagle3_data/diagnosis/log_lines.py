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
    r"(?: (?P<time>[\d\-]+ [\d:.,]+) \[?(?P<origin>[\w./<>-]+:\d+)\]| (?P<plain_origin>[\w./<>-]+:\d+):) ?"
)
LOGGER_RECORD = re.compile(
    r"^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?: ?- ?| )(?:\[?[\w.]+\]? ?- ?)?"
    r"\[?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?(?: ?[-:] ?| )"
)
"""What other loggers write: `2026-11-30 02:00:00,123 - name - ERROR - text`, and this package's own."""
FOREIGN = (
    re.compile(r"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ (?P<label>[\w.@/-]+(?:\[\d+\])?): ?"),
    re.compile(r"^\d{4}-\d\d-\d\dT[\d:.,]+(?:[+-][\d:]+|Z)? \S+ (?P<label>[\w.@/-]+\[\d+\]): ?"),
    re.compile(r"^(?P<label>[\w.-]+) +\| ?"),
    re.compile(r"^\[(?P<label>pod/[\w./-]+)\] ?"),
    re.compile(r"^(?P<label>\d+): ?"),
    re.compile(r"^\[(?P<label>\d+(?:,\d+)?)\]<std\w+>:? ?"),
    re.compile(r"^(?P<label>)\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:[+-][\d:]+|Z) ?"),
)
"""What other programs put before every line: journald, docker compose, kubectl, `srun --label`, mpirun, and
the time stamps of a container's log."""
MOST_LINES = 0.8
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
    plain = [TERMINAL_CODES.sub("", line) for line in re.split(r"\r\n|\n|\r", text)]
    lines, labels = _without_foreign_prefixes(plain)
    several = len(set(labels)) > 1
    return [
        _parse(number, line, label if several else "")
        for number, (line, label) in enumerate(zip(lines, labels, strict=True), start=1)
    ]


def _without_foreign_prefixes(lines: list[str]) -> tuple[list[str], list[str]]:
    """The lines without what another program put before (almost) all of them, and what that calls each line's
    source."""
    labels = [""] * len(lines)
    while (prefix := _common_prefix(lines)) is not None:
        rest = list(lines)
        for position, line in enumerate(lines):
            if (found := prefix.match(line)) is not None:
                rest[position] = line[found.end() :]
                labels[position] = found["label"] or labels[position]
        lines = rest
    return lines, labels


def _common_prefix(lines: list[str]) -> re.Pattern[str] | None:
    written = [line for line in lines if line.strip()]
    if len(written) < 2:
        return None
    counts = {prefix: sum(prefix.match(line) is not None for line in written) for prefix in FOREIGN}
    return next((prefix for prefix, count in counts.items() if count >= MOST_LINES * len(written)), None)


def _parse(number: int, line: str, label: str) -> LogLine:
    process = label
    while (found := PROCESS.match(line)) is not None:
        process, line = " ".join(filter(None, (label, found["name"]))), line[found.end() :]
    line = RANK.sub("", line)
    record = RECORD.match(line)
    if record is not None:
        origin = record["origin"] or record["plain_origin"]
        return LogLine(number, process, record["level"], origin, line[record.end() :])
    if (record := LOGGER_RECORD.match(line)) is not None:
        return LogLine(number, process, record["level"], "logger", line[record.end() :])
    bare = BARE_LEVEL.match(line)
    return LogLine(number, process, bare["level"] if bare else "", "", line)


def by_process(lines: Iterable[LogLine]) -> dict[str, list[LogLine]]:
    """The lines of each process in order: what several processes print at once is interleaved."""
    streams: dict[str, list[LogLine]] = {}
    for line in lines:
        streams.setdefault(line.process, []).append(line)
    return streams
