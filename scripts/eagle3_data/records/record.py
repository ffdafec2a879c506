"""JSON records: written atomically, with sorted keys and a format version, and read as typed dataclasses.
Standard library only.

A record that crosses a border between stages is a `Record`: its fields are the keys of the JSON object, and
their annotations say what each must hold. What is damaged, lacks a key or holds another type is an InputError
that names file, key and remedy, never a KeyError somewhere else.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import types
import typing
from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Self

from eagle3_data import FORMAT_VERSION
from eagle3_data.errors import InputError, StorageError

JsonObject = dict[str, Any]
"""A JSON object whose keys are not ours to name."""

START_OVER = "delete it and run the same command again"


# ---- files


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file for reading. Raises OSError if it is not a regular file: opening a FIFO would block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return open(descriptor, "rb")


def remove(path: Path) -> None:
    """Delete whatever is at a record's path, even a directory."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_json(path: str | os.PathLike[str], record: JsonObject) -> None:
    """Write `record` so that a reader sees either the old file or the whole new one, also after a crash and
    with several writers."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(
        f".{path.name}.{os.urandom(8).hex()}.part"
    )  # random: writers on two machines may have one process number
    try:
        with open(part, "w", encoding="utf-8") as file:
            json.dump(
                {"format_version": FORMAT_VERSION, **record},
                file,
                indent=1,
                sort_keys=True,
                ensure_ascii=False,
            )
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_json(path: str | os.PathLike[str], remedy: str = START_OVER) -> JsonObject:
    """Read a record. Raises InputError (naming file and remedy) where it is damaged or of another format
    version, StorageError where it may not be read: nothing is known of it then."""
    try:
        with open_regular(path) as file:
            record = json.loads(file.read().decode())
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist; run the same command again") from error
    except PermissionError:
        raise StorageError(
            f"{path}: permission denied; have its owner call `chmod g+r`, then run the same command again"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a JSON record; {remedy}") from error
    if not isinstance(record, dict) or record.get("format_version") != FORMAT_VERSION:
        raise InputError(f"{path} does not have format version {FORMAT_VERSION}; {remedy}")
    return record


def find_json(path: str | os.PathLike[str]) -> JsonObject | None:
    """The record, or None where there is no readable one: for files whose absence is a normal state."""
    try:
        return read_json(path)
    except (InputError, StorageError):
        return None


# ---- typed records


def key(name: str, **options: Any) -> Any:
    """A field whose JSON key is not a Python name, such as `class`."""
    return field(metadata={"key": name}, **options)


@dataclass(frozen=True)
class Record:
    """Base of the frozen dataclasses that are stored as JSON objects. Further keys of a file are ignored, so
    that a later version may add some; a field with a default may be absent, so that it may read earlier ones.
    """

    on_damage: ClassVar[str] = START_OVER
    """What to do about a file that does not hold such a record."""

    @classmethod
    def from_json(cls, value: object) -> Self:
        """Raises MisfitError, which names the key, if `value` is not such a record."""
        read: _Reader = _reader(typing.cast(Any, cls))
        record: Self = read(value)
        return record

    def to_json(self) -> JsonObject:
        layout = _layout(typing.cast(Any, type(self)))
        return {name: _plain(getattr(self, attribute)) for attribute, name, _ in layout}

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Raises InputError naming the file, the key and the remedy, StorageError as `read_json` does."""
        record = read_json(path, cls.on_damage)
        try:
            return cls.from_json(record)
        except MisfitError as error:
            raise InputError(f"{path} is damaged: {error}; {cls.on_damage}") from None

    @classmethod
    def find(cls, path: str | os.PathLike[str]) -> Self | None:
        """The record, or None where there is no readable one: for files whose absence is a normal state."""
        try:
            return cls.read(path)
        except (InputError, StorageError):
            return None

    @classmethod
    def is_damaged(cls, path: str | os.PathLike[str]) -> bool:
        """Whether what is there is not such a record. Raises StorageError if that cannot be found out."""
        try:
            cls.read(path)
        except InputError:
            return True
        return False

    def write(self, path: str | os.PathLike[str]) -> None:
        write_json(path, self.to_json())


class MisfitError(ValueError):
    """A JSON value is not what a record's field must be. The text names the key."""

    def __init__(self, problem: str, place: str = "") -> None:
        super().__init__(f"{place} {problem}" if place else problem)
        self.problem, self.place = problem, place

    def below(self, name: str) -> MisfitError:
        return MisfitError(self.problem, f"{name}.{self.place}" if self.place else name)


_Reader = Callable[[Any], Any]

_NAMES = {int: "an integer", float: "a number", str: "a text", bool: "true or false", types.NoneType: "null"}


@cache
def _layout(record: Any) -> tuple[tuple[str, str, bool], ...]:
    """Of each field its attribute, its JSON key, and whether the key must be there."""
    return tuple(
        (
            one.name,
            one.metadata.get("key", one.name),
            one.default is MISSING and one.default_factory is MISSING,
        )
        for one in fields(record)
    )


@cache
def _reader(kind: Any) -> _Reader:
    """What turns a JSON value into a value of the annotation `kind`, made once: a run has many records."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in (types.UnionType, typing.Union):
        return _union_reader(arguments)
    if origin is typing.Literal:
        return _checked(lambda value: value in arguments, " or ".join(map(repr, arguments)))
    if origin in (list, tuple):
        return _sequence_reader(origin, _reader(arguments[0]))
    if origin is dict:
        return _mapping_reader(_reader(arguments[1]))
    if is_dataclass(kind):
        return _record_reader(kind)
    if kind is float:
        return _checked(lambda value: type(value) in (int, float), _NAMES[float])
    return _checked(
        lambda value: type(value) is kind, _NAMES[kind]
    )  # bool is a subclass of int, but not an integer here


def _checked(fits: Callable[[Any], bool], expected: str) -> _Reader:
    def read(value: Any) -> Any:
        if not fits(value):
            raise MisfitError(f"must be {expected}, not {_shown(value)}")
        return value

    return read


def _union_reader(kinds: tuple[Any, ...]) -> _Reader:
    readers = [_reader(kind) for kind in kinds]

    def read(value: Any) -> Any:
        misfits = []
        for reader in readers:
            try:
                return reader(value)
            except MisfitError as error:
                misfits.append(error)
        # Of a record or null, what misfits inside the record says more than that it is not null.
        raise max(misfits, key=lambda misfit: len(misfit.place))

    return read


def _sequence_reader(kind: type, reader: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise MisfitError(f"must be a list, not {_shown(value)}")
        try:
            return kind([reader(item) for item in value])
        except MisfitError:
            return kind([_inside(reader, item, str(index)) for index, item in enumerate(value)])

    return read


def _mapping_reader(reader: _Reader) -> _Reader:
    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise MisfitError(f"must be an object, not {_shown(value)}")
        return {name: _inside(reader, item, name) for name, item in value.items()}

    return read


def _record_reader(record: Any) -> _Reader:
    hints = typing.get_type_hints(record)
    layout = [
        (attribute, name, required, _reader(hints[attribute]))
        for attribute, name, required in _layout(record)
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise MisfitError(f"must be an object, not {_shown(value)}")
        arguments = {}
        for attribute, name, required, reader in layout:
            if name in value:
                arguments[attribute] = _inside(reader, value[name], name)
            elif required:
                raise MisfitError("is missing", name)
        return record(**arguments)

    return read


def _inside(reader: _Reader, value: Any, name: str) -> Any:
    try:
        return reader(value)
    except MisfitError as error:
        raise error.below(name) from None


def _plain(value: Any) -> Any:
    """A field's value as JSON has it."""
    if isinstance(value, Record):
        return value.to_json()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:37]}..."
