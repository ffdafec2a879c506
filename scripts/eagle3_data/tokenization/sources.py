"""Reading sources row by row: the file is never in memory as a whole."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from eagle3_data.config import Source
from eagle3_data.errors import InputError
from eagle3_data.tokenization.rows import Row

CHUNK_BYTES = 1 << 20
SPACE = re.compile(r"[ \t\r\n]*")


def read_source(number: int, source: Source) -> Iterator[Row]:
    """The rows of a source in order. Raises InputError naming the file, and the place in it where it cannot be read on."""
    path = Path(source.path)
    if not path.is_file():
        raise InputError(f"data.sources[{number}]: there is no file {path}; correct the path (it is relative to the working directory)")
    try:
        with path.open("rb") as file:
            array = _starts_with_bracket(file)
            yield from _json_array(number, path, file) if array else _json_lines(number, file)
    except OSError as error:
        raise InputError(f"{path} cannot be read; check its permissions and that it is whole") from error


def _starts_with_bracket(file: BinaryIO) -> bool:
    """Whether this is one JSON array rather than one object a line. Leaves the file at its start, behind a byte order mark."""
    head = file.read(4096)
    offset = len(codecs.BOM_UTF8) if head.startswith(codecs.BOM_UTF8) else 0
    file.seek(offset)
    return head[offset:].lstrip()[:1] == b"["


def _json_lines(number: int, file: BinaryIO) -> Iterator[Row]:
    index = 0
    for line_number, line in enumerate(file, 1):
        if line.strip():
            yield Row(number, index, f"line {line_number}", text=line)
            index += 1


def _json_array(number: int, path: Path, file: BinaryIO) -> Iterator[Row]:
    """The elements of one array as they arrive; each is handed on as its text, for a worker to parse."""
    window = _Window(file)
    index = 0
    try:
        window.take("[")
        if window.peek() != "]":
            yield window.element(number, index)
            index += 1
            while window.peek() != "]":
                window.take(",")
                yield window.element(number, index)
                index += 1
        window.take("]")
        if window.peek():
            raise ValueError("something follows the array")
    except ValueError as error:
        where = f"{path}, line {window.line}"
        raise InputError(f"{where}: not a valid JSON array at element {index} ({error}); what follows cannot be read, so repair the file") from None


class _Window:
    """The part of a JSON text that is being parsed."""

    def __init__(self, file: BinaryIO) -> None:
        self._reader = codecs.getreader("utf-8")(file)
        self._parse = json.JSONDecoder().raw_decode
        self._text = ""
        self._position = 0
        self._exhausted = False
        self.line = 1

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
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
            else:
                if end < len(self._text) or self._exhausted:  # a number may go on behind the window
                    text, self._position = self._text[self._position : end], end
                    return text
            self._read_on()

    def _read_on(self) -> None:
        rest = self._text[self._position :]
        more = self._reader.read(max(CHUNK_BYTES, len(rest)))  # twice as much each time an element does not fit
        self._text, self._position, self._exhausted = rest + more, 0, not more
