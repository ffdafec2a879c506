"""What a name of the client may stand for, and how two branches of a program are joined. Standard library
only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eagle3_data.compatibility.source.symbols import ClassSymbol, FunctionSymbol, Symbol


@dataclass(frozen=True)
class Instance:
    """An instance of a vLLM class. `exact`: of that very class, for it was constructed here; a declared type
    may hold a subclass with more attributes and other signatures."""

    cls: ClassSymbol
    exact: bool = False


@dataclass(frozen=True)
class BoundMethod:
    """A method of `receiver`: an instance, or for a classmethod the class."""

    receiver: Instance | ClassSymbol
    function: FunctionSymbol

    @property
    def cls(self) -> ClassSymbol:
        return self.receiver.cls if isinstance(self.receiver, Instance) else self.receiver

    @property
    def exact(self) -> bool:
        return not isinstance(self.receiver, Instance) or self.receiver.exact


@dataclass(frozen=True)
class Elements:
    """A container: what iterating a list, or looking into a mapping, gives."""

    item: Value
    mapping: bool = False


@dataclass(frozen=True)
class Coroutine:
    """What calling an `async def` gives before it is awaited."""

    result: Value
    name: str


@dataclass(frozen=True)
class Keywords:
    """A dictionary written out in the client. `closed`: it holds these keys and no others."""

    keys: frozenset[str]
    closed: bool = True


@dataclass(frozen=True)
class Constant:
    """A flag, a string or None; vLLM's version is such a string."""

    value: bool | str | None


@dataclass(frozen=True)
class Probe:
    """The outcome of asking what this vLLM can do: a signature, a version, `getattr(x, "y", None)`."""


Value = Symbol | Instance | BoundMethod | Elements | Coroutine | Keywords | Constant | Probe | None
"""None: the trail is lost."""
NOTHING = Constant(None)
PROBE = Probe()


def join(first: Value, second: Value) -> Value:
    """What a name stands for after two branches, one of which ran. `None` beside an instance is an optional
    instance, and its use is judged as that of the instance."""
    if first == second or second == NOTHING:
        return first
    if first == NOTHING:
        return second
    if isinstance(first, Instance) and isinstance(second, Instance) and first.cls == second.cls:
        return Instance(first.cls)
    if isinstance(first, Keywords) and isinstance(second, Keywords):
        return Keywords(first.keys & second.keys, closed=False)
    return PROBE if isinstance(first, Probe | Constant) and isinstance(second, Probe | Constant) else None


def join_all(values: Iterable[Value]) -> Value:
    values = list(values)
    joined = values[0] if values else None
    for value in values[1:]:
        joined = join(joined, value)
    return joined
