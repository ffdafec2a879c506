"""Rows of JSON files: one object a line, or one array of objects, also compressed. Rows are found here and
parsed by the workers."""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from eagle3_data.errors import InputError, headline
from eagle3_data.tokenization.reading.rows import Row

CHUNK_BYTES = 1 << 20
HEAD_BYTES = 4096
SPACE = re.compile(r"[ \t\r\n]*")
BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
"""Strings, since they may hold brackets, and brackets."""

BEHIND_ELEMENT = tuple(" \t\r\n,]")
COMPRESSIONS = {"gz": "gzip", "zst": "zstd"}


def read_json_rows(number: int, path: Path, compression: str | None) -> Iterator[Row]:
    """The rows of source `number`. A row that is not JSON is still a row; an InputError means that the file
    itself cannot be read on."""
    try:
        with open_file(path, compression) as file:
            offset = _behind_mark(file.peek(HEAD_BYTES))
            file.read(offset)
            array = _is_array(file.peek(HEAD_BYTES))
            yield from _array_elements(number, path, file) if array else _lines(number, file)
    except (OSError, EOFError) as error:
        raise InputError(
            f"{path} cannot be read to its end ({headline(error)}); check its permissions and that it is"
            " whole"
        ) from error


def open_file(path: Path, compression: str | None) -> io.BufferedReader:
    """A file as its bytes are before compression."""
    raw = pa.input_stream(str(path), compression=COMPRESSIONS[compression] if compression else None)
    return io.BufferedReader(cast("io.RawIOBase", raw), CHUNK_BYTES)


def _behind_mark(head: bytes) -> int:
    return len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0


def _is_array(head: bytes) -> bool:
    """Whether the file is one array, and not a list in each line."""
    first, _, rest = head.lstrip().partition(b"\n")
    return first[:1] == b"[" and not (first.rstrip().endswith(b"]") and rest.lstrip()[:1] == b"[")


def _lines(number: int, file: BinaryIO) -> Iterator[Row]:
    index = 0
    for line_number, line in enumerate(file, 1):
        if not line.isspace():
            yield Row(number, index, f"line {line_number}", text=line)
            index += 1


def _array_elements(number: int, path: Path, file: BinaryIO) -> Iterator[Row]:
    window = _Window(file)
    index = 0
    try:
        window.take("[")
        while window.peek() != "]":
            if index:
                window.take(",")
            yield window.element(number, index)
            index += 1
        window.take("]")
        if window.peek():
            raise ValueError("something follows the array")
    except ValueError as error:
        where = f"{path}, line {window.line}"
        raise InputError(
            f"{where}: not a valid JSON array from element {index} on ({error}); what follows cannot be"
            " read, so"
            " repair the file"
        ) from None


class _Window:
    """The part of a JSON text that is being parsed: at least one element, at most one and a chunk."""

    def __init__(self, file: BinaryIO) -> None:
        self._reader = io.TextIOWrapper(file, encoding="utf-8", newline="")
        self._parse = json.JSONDecoder(
            parse_int=float
        ).raw_decode  # only ends are looked for, and `int` refuses thousands of digits
        self._text = ""
        self._position = 0
        self._exhausted = False
        self.line = 1

    def peek(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            start = self._position
            self._position = SPACE.match(self._text, start).end()  # type: ignore[union-attr]
            self.line += self._text.count("\n", start, self._position)
            if self._position < len(self._text) or self._exhausted:
                return self._text[self._position : self._position + 1]
            self._read_on()

    def take(self, expected: str) -> None:
        if self.peek() != expected:
            raise ValueError(f"{expected!r} expected")
        self._position += 1

    def element(self, source: int, index: int) -> Row:
        self.peek()
        line, text = self.line, self._value()
        self.line += text.count("\n")
        return Row(source, index, f"element {index} (line {line})", text=text)

    def _value(self) -> str:
        while True:
            try:
                end = self._parse(self._text, self._position)[1]
            except json.JSONDecodeError as error:
                if self._exhausted:
                    raise ValueError(error.msg) from None
            except RecursionError:
                if end := self._end_of_nested():
                    return self._taken(end)
                if self._exhausted:
                    raise ValueError("nested too deeply and never closed") from None
            else:
                if (
                    self._exhausted or self._text[end : end + 1] in BEHIND_ELEMENT
                ):  # a number may continue behind the window
                    return self._taken(end)
            self._read_on()

    def _taken(self, end: int) -> str:
        text, self._position = self._text[self._position : end], end
        return text

    def _end_of_nested(self) -> int:
        """Where the brackets that open at the position are closed, 0 if not in this window: for what is
        nested too deeply to be parsed."""
        depth = 0
        for found in BRACKETS.finditer(self._text, self._position):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
            if depth == 0:
                return found.end()
        return 0

    def _read_on(self) -> None:
        rest = self._text[self._position :]
        more = self._reader.read(
            max(CHUNK_BYTES, len(rest))
        )  # twice as much each time an element does not fit
        self._text, self._position, self._exhausted = rest + more, 0, not more
