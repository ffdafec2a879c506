"""Puts lines, tracebacks and catalogue together: the cause, honestly unknown where it is. Standard library
only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from eagle3_data.diagnosis.catalogue import (
    BARE_ERROR,
    EMPTY_MESSAGE,
    ENGINE_DIED,
    FAULTS,
    NOISE,
    QUOTED,
    SECONDARY,
)
from eagle3_data.diagnosis.fault import Fault
from eagle3_data.diagnosis.log_lines import LogLine, by_process, parse_lines
from eagle3_data.diagnosis.tracebacks import (
    Chain,
    Raised,
    find_chains,
    is_of_traceback,
    shortened,
    without_repeats,
)

HANDLED_LEVELS = {"DEBUG", "INFO", "WARNING"}
NOTHING_AFTER_COLON = re.compile(
    r"^(?!.*Traceback).*\b(?:error|failed|failure|exception)\b[^:]*:\s*$", re.IGNORECASE
)
LAST_LINES = 15
MESSAGE_LINES = 4
CAUSE_LIMIT = 600


@dataclass(frozen=True)
class Diagnosis:
    """Why something failed. `cause` is never empty; `known_fault` is an id of the catalogue or None."""

    cause: str
    known_fault: str | None
    remedy: str
    excerpt: str


@dataclass(frozen=True)
class _Candidate:
    line: int
    words: str
    excerpt: str
    place: str = ""
    fault: Fault | None = None


def diagnose(text: str) -> Diagnosis:
    """The first real cause in the log `text` of an engine, its workers and its parent."""
    lines = parse_lines(text)
    chains = without_repeats(
        [chain for stream in by_process(lines).values() for chain in find_chains(stream)]
    )
    cut = [
        chain.raised[0]
        for chain in chains
        if chain.raised[0].cut and chain.raised[0].level not in HANDLED_LEVELS
    ]
    chains = [chain for chain in chains if not chain.raised[0].cut]
    roots = [root for chain in chains if (root := _root(chain)) is not None]
    candidates = [_of_exception(root) for root in roots if root.level not in HANDLED_LEVELS]
    candidates += _in_lines(lines)
    if candidates:
        return _diagnosis(min(candidates, key=lambda candidate: candidate.line))
    return _without_root(lines, chains, cut)


def _root(chain: Chain) -> Raised | None:
    """The exception of a chain that is the cause: the deepest of those raised `from` one another, else the
    last; not one that only passes on."""
    own = [raised for raised in chain.raised if not _passes_on(raised)]
    if not own:
        return None
    root = own[-1]
    position = chain.raised.index(root)
    while position > 0 and chain.caused[position - 1] and chain.raised[position - 1] in own:
        position -= 1
    return chain.raised[position]


def _passes_on(raised: Raised) -> bool:
    words = f"{raised.name}: {raised.message}"
    return SECONDARY.search(words) is not None or NOISE.search(words) is not None


def _of_exception(raised: Raised) -> _Candidate:
    words = f"{raised.name}: {raised.message}\nby {raised.source}\nat {raised.place}"
    fault = next((fault for fault in FAULTS if fault.pattern.search(words)), None)
    if fault is None and not raised.message:
        fault = BARE_ERROR
    return _Candidate(raised.first, raised.headline, shortened(raised).text, _where(raised), fault)


def _where(raised: Raised) -> str:
    place = raised.place
    return f"{place}, process {raised.process}" if place and raised.process else place or raised.process


def _in_lines(lines: Sequence[LogLine]) -> list[_Candidate]:
    """Faults that show as a line, not as a traceback."""
    candidates = []
    for line in lines:
        for fault in FAULTS:
            if fault.in_lines and fault.pattern.search(line.text) and not NOISE.search(line.text):
                candidates.append(
                    _Candidate(line.number, line.text.strip(), line.text.strip(), line.process, fault)
                )
                break
    return candidates


def _diagnosis(candidate: _Candidate) -> Diagnosis:
    cause = candidate.words + (f" (at {candidate.place})" if candidate.place else "")
    if candidate.fault is None:
        remedy = (
            "no known fault: the excerpt is the first traceback that is neither noise nor an echo; start"
            " there"
        )
        return Diagnosis(_cut(cause), None, remedy, candidate.excerpt)
    return Diagnosis(
        _cut(f"{candidate.fault.meaning}: {cause}"),
        candidate.fault.id,
        candidate.fault.remedy,
        candidate.excerpt,
    )


def _without_root(lines: Sequence[LogLine], chains: Sequence[Chain], cut: Sequence[Raised]) -> Diagnosis:
    """No whole traceback of its own: what others quote of it, a process that vanished, an ERROR line, what is
    left of a traceback, an exception that quotes another program, an empty word, the end."""
    passed_on = [raised for chain in chains for raised in chain.raised]
    empty = [line for line in _spoken(lines) if NOTHING_AFTER_COLON.search(line.text)]
    candidate = (
        _quoted_by_others(lines, passed_on)
        or _vanished(lines, passed_on)
        or _error_line(lines, empty, cut)
        or (None if cut or not passed_on else _of_exception(passed_on[0]))
    )
    if candidate is not None:
        return _diagnosis(candidate)
    if cut:
        return _of_cut(cut[0])
    if empty:
        words = f"`{empty[0].text.strip()}`, nothing after the colon"
        return _diagnosis(_Candidate(empty[0].number, words, _last(lines), "", EMPTY_MESSAGE))
    return _unknown(lines)


def _spoken(lines: Sequence[LogLine]) -> list[LogLine]:
    """Lines that say something by themselves and are not known to be harmless."""
    return [
        line
        for line in lines
        if line.text.strip() and not NOISE.search(line.text) and not is_of_traceback(line.text)
    ]


def _quoted_by_others(lines: Sequence[LogLine], passed_on: Sequence[Raised]) -> _Candidate | None:
    texts = [*(raised.message for raised in passed_on), *(line.text for line in lines)]
    quoted = next((found for text in texts if (found := QUOTED.search(text)) is not None), None)
    return _of_quoted(quoted) if quoted is not None else None


def _vanished(lines: Sequence[LogLine], passed_on: Sequence[Raised]) -> _Candidate | None:
    texts = [*(raised.headline for raised in passed_on), *(raised.message for raised in passed_on)]
    texts += [line.text for line in lines]
    died = next((text for text in texts if ENGINE_DIED.pattern.search(text)), None)
    return _Candidate(0, died.strip(), _last(lines), "", ENGINE_DIED) if died else None


def _error_line(
    lines: Sequence[LogLine], empty: Sequence[LogLine], cut: Sequence[Raised]
) -> _Candidate | None:
    """The first line of level ERROR that is not the rest of a traceback; an indented one is rather the rest
    of another."""
    in_cut = [range(raised.first, raised.last + 1) for raised in cut]
    errors = [
        line
        for line in _spoken(lines)
        if line.level in ("ERROR", "CRITICAL")
        and line not in empty
        and not any(line.number in lost for lost in in_cut)
    ]
    errors += [line for line in empty if line.level not in HANDLED_LEVELS and _following(line, lines)]
    first = min(errors, key=lambda line: (line.text.startswith(" "), line.number), default=None)
    return _of_line(first, lines) if first is not None else None


def _of_cut(raised: Raised) -> Diagnosis:
    deepest = f"; the last statement it shows is `{raised.source}`" if raised.source else ""
    place = f" (at {_where(raised)})" if _where(raised) else ""
    remedy = (
        "the log ends inside a traceback: look for the rest in the other logs, and how the process ended"
        " (exit code, scheduler, kernel log)"
    )
    return Diagnosis(
        _cut(f"a traceback that is cut off before its exception{deepest}{place}"),
        None,
        remedy,
        shortened(raised).text,
    )


def _following(line: LogLine, lines: Sequence[LogLine]) -> list[str]:
    """The lines that may belong to the message of `line`: the process's next ones, up to an empty one, a
    record or a traceback."""
    after = [
        other
        for other in lines
        if 0 < other.number - line.number <= MESSAGE_LINES and other.process == line.process
    ]
    return [
        other.text.rstrip()
        for other in takewhile(
            lambda other: other.text.strip() and not other.level and not is_of_traceback(other.text), after
        )
    ]


def _of_line(line: LogLine, lines: Sequence[LogLine]) -> _Candidate:
    """An ERROR line, with the lines that may belong to its message."""
    text = "\n".join([line.text.strip(), *_following(line, lines)]).strip()
    fault = next((fault for fault in FAULTS if fault.pattern.search(text)), None)
    return _Candidate(line.number, text, text, line.process, fault)


def _of_quoted(quoted: re.Match[str]) -> _Candidate:
    """A worker's error that is only known as another process quotes it."""
    message = quoted["message"].strip()
    if not message:
        return _Candidate(0, "a worker failed with an error that has no text", quoted[0], "", EMPTY_MESSAGE)
    fault = next((fault for fault in FAULTS if fault.pattern.search(message)), None)
    return _Candidate(0, f"a worker failed: {message}", quoted[0], "", fault)


def _unknown(lines: Sequence[LogLine]) -> Diagnosis:
    shown = _last(lines)
    if not shown:
        return Diagnosis(
            "unknown: the log is empty",
            None,
            "check whether the process started at all, and how it ended (exit code, scheduler)",
            "",
        )
    last = next(
        (text.strip() for text in reversed(shown.splitlines()) if not is_of_traceback(text)), "of a traceback"
    )
    cause = (
        f"unknown: no traceback and no error line in {len(lines)} lines that is not known to be harmless; the"
        f" last line is `{last}`"
    )
    return Diagnosis(_cut(cause), None, "see how the process ended (exit code, scheduler, kernel log)", shown)


def _last(lines: Sequence[LogLine]) -> str:
    return "\n".join([line.text.rstrip() for line in lines if line.text.strip()][-LAST_LINES:])


def _cut(cause: str) -> str:
    return cause if len(cause) <= CAUSE_LIMIT else f"{cause[:CAUSE_LIMIT]} ..."
