#!/usr/bin/env python3
"""Say why an engine failed: the first real cause in its logs, and what to do. Known noise is passed over."""

import argparse
import json
import textwrap
from dataclasses import asdict
from pathlib import Path

from eagle3_data import cli
from eagle3_data.diagnosis import Diagnosis, diagnose
from eagle3_data.errors import InputError


def read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path} cannot be read; give the log of an engine or of a rule") from error


def render(path: str, diagnosis: Diagnosis) -> str:
    """The diagnosis as text."""
    lines = [path, *textwrap.wrap(f"cause: {diagnosis.cause}", 118, initial_indent="  ", subsequent_indent="         ")]
    lines += [
        f"  known: {diagnosis.known_fault or 'no'}",
        *textwrap.wrap(f"do:    {diagnosis.remedy}", 118, initial_indent="  ", subsequent_indent="         "),
    ]
    return "\n".join([*lines, *(f"    | {line}" for line in diagnosis.excerpt.splitlines())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("logs", nargs="+", metavar="LOG", help="log of an engine, a worker or a rule")
    parser.add_argument("--json", action="store_true", help="print one JSON object a log")
    arguments = parser.parse_args()
    for path in arguments.logs:
        diagnosis = diagnose(read(path))
        print(json.dumps({"log": path, **asdict(diagnosis)}) if arguments.json else render(path, diagnosis))


if __name__ == "__main__":
    cli.run(main)
