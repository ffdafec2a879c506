"""What an entry of the catalogue is. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`pattern` is searched in `Type: message`, a new line and `by` with the statement that raised, and in
    single lines of the log where `in_lines` is set."""

    id: str
    pattern: re.Pattern[str]
    meaning: str
    remedy: str
    in_lines: bool = False


def fault(name: str, pattern: str, meaning: str, remedy: str, in_lines: bool = False) -> Fault:
    return Fault(name, re.compile(pattern, re.DOTALL), meaning, remedy, in_lines)
