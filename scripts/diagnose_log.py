#!/usr/bin/env python3
"""Say why an engine failed: the first real cause in its logs, and what to do. Known noise is passed over."""

import argparse
import contextlib
import gzip
import io
import json
import textwrap
import zlib
from dataclasses import asdict
from pathlib import Path

from eagle3_data import cli
from eagle3_data.diagnosis import Diagnosis, diagnose
from eagle3_data.errors import InputError

GZIP = b"\x1f\x8b"
BLOCK = 1 << 20


def read(path: str) -> str:
    """The log's text, of a compressed one (whatever its name) as far as it goes. Raises InputError."""
    try:
        content = Path(path).read_bytes()
        return (unpacked(content) if content.startswith(GZIP) else content).decode("utf-8", errors="replace")
    except (OSError, zlib.error) as error:  # gzip's own errors are OSErrors
        raise InputError(f"{path} cannot be read; give the log of an engine or of a rule") from error


def unpacked(content: bytes) -> bytes:
    parts = []
    with (
        gzip.open(io.BytesIO(content)) as file,
        contextlib.suppress(EOFError),
    ):  # a copy of a log that is still written ends anywhere
        while part := file.read1(BLOCK):
            parts.append(part)
    return b"".join(parts)


def render(path: str, diagnosis: Diagnosis) -> str:
    """The diagnosis as text."""
    lines = [
        path,
        *textwrap.wrap(f"cause: {diagnosis.cause}", 118, initial_indent="  ", subsequent_indent="         "),
    ]
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
    cli.end_with_reader()
    for path in arguments.logs:
        diagnosis = diagnose(read(path))
        print(json.dumps({"log": path, **asdict(diagnosis)}) if arguments.json else render(path, diagnosis))


if __name__ == "__main__":
    cli.run(main)
