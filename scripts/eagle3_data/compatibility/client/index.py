"""What must be known of a whole client before a file of it is judged: its classes, what it puts into vLLM's
classes and modules at run time, and which of its functions run for some vLLM versions only. Standard library
only."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath

from eagle3_data.compatibility.source.client import Client
from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    FunctionNode,
    FunctionSymbol,
    ModuleSymbol,
    Symbols,
    dotted,
    last_name,
    statements,
)

BUILTIN_BASES = {"object", "ABC", "Protocol", "Generic", "Enum", "NamedTuple", "Exception"}


@dataclass(frozen=True)
class Edge:
    """One mention of a function or module of the client. `guarded`: it is reached only where the client has
    asked what this vLLM can do, or never."""

    caller: str
    guarded: bool


@dataclass
class ClientIndex:
    """Filled by a first walk over every file."""

    classes: dict[str, list[ast.ClassDef]] = field(default_factory=lambda: defaultdict(list))
    attributes_set: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """By the name of the vLLM class or module, the empty string where the object is not known."""
    edges: dict[str, set[Edge]] = field(default_factory=lambda: defaultdict(set))
    functions: set[str] = field(default_factory=set)
    modules_made: set[str] = field(default_factory=set)
    """Modules that the client puts into `sys.modules`."""
    _defined: dict[ast.ClassDef, dict[str, ast.AST]] = field(default_factory=dict)
    _below: dict[str, list[ast.ClassDef]] = field(default_factory=dict)

    @classmethod
    def of(cls, client: Client) -> ClientIndex:
        index = cls()
        for file in client.files:
            for node in file.nodes:
                if isinstance(node, ast.ClassDef):
                    index.classes[node.name].append(node)
                elif isinstance(node, FunctionNode):
                    index.functions.add(node.name)
                elif isinstance(node, ast.Assign):
                    index.modules_made.update(_modules_made(node))
        return index

    def sets(self, owner: str, name: str) -> bool:
        """Whether the client sets the attribute on that class or module, or on something unknown."""
        return name in self.attributes_set[owner] or name in self.attributes_set[""]

    def replaces(self, symbol: object) -> bool:
        """Whether the client puts something of its own in the place of a class, function or method."""
        if isinstance(symbol, FunctionSymbol) and symbol.owner is not None:
            return self.replaces(symbol.owner) or symbol.name in self.attributes_set[symbol.owner.name]
        if isinstance(symbol, ClassSymbol | FunctionSymbol):
            return any(
                symbol.name in names
                for owner, names in self.attributes_set.items()
                if owner.startswith("vllm")
            )
        return isinstance(symbol, ModuleSymbol) and symbol.name in self.modules_made

    def below(self, cls: ClassSymbol, symbols: Symbols) -> list[ast.ClassDef]:
        """The client's classes that derive, by name, from a vLLM class or one below it."""
        if cls.name in self._below:
            return self._below[cls.name]
        names = {cls.name, *(name for _, name in symbols.index.derived(cls.name))}
        found: list[ast.ClassDef] = []
        while more := [
            node
            for nodes in self.classes.values()
            for node in nodes
            if node not in found and any(last_name(base) in names for base in node.bases)
        ]:
            found += more
            names |= {node.name for node in more}
        self._below[cls.name] = found
        return found

    def has_subclass(self, node: ast.ClassDef) -> bool:
        return any(
            last_name(base) == node.name for nodes in self.classes.values() for n in nodes for base in n.bases
        )

    def members_below(self, node: ast.ClassDef) -> set[str]:
        """What the client's classes that derive from this one define."""
        names, found = {node.name}, set[str]()
        while more := [
            n
            for nodes in self.classes.values()
            for n in nodes
            if n.name not in names and any(last_name(base) in names for base in n.bases)
        ]:
            names |= {n.name for n in more}
            found |= {name for n in more for name in self._own(n)}
        return found

    def members(
        self, node: ast.ClassDef, seen: frozenset[str] = frozenset()
    ) -> tuple[dict[str, ast.AST], list[ast.expr]]:
        """What a class of the client and those bases of it that are the client's own define, and the bases
        that are not."""
        found: dict[str, ast.AST] = {}
        foreign: list[ast.expr] = []
        for base in node.bases:
            above = [n for n in self.classes.get(last_name(base), ()) if n is not node and n.name not in seen]
            if not above and last_name(base) not in BUILTIN_BASES:
                foreign.append(base)
            for other in above:
                names, outside = self.members(other, seen | {node.name})
                found |= names
                foreign += outside
        return {**found, **self._own(node)}, foreign

    def _own(self, node: ast.ClassDef) -> dict[str, ast.AST]:
        if node not in self._defined:
            self._defined[node] = dict(own_members(node))
        return self._defined[node]

    @cached_property
    def _guarded(self) -> set[str]:
        """Functions and modules of the client every mention of which is guarded, or stands in such a
        function."""
        from_others = {
            name: others
            for name, edges in self.edges.items()
            if (others := [edge for edge in edges if edge.caller != name])
        }
        found: set[str] = set()
        while more := {
            name
            for name, edges in from_others.items()
            if name not in found and all(edge.guarded or edge.caller in found for edge in edges)
        }:
            found |= more
        return found

    def is_guarded(self, name: str) -> bool:
        return name in self._guarded

    def file_is_guarded(self, path: str) -> bool:
        parts = PurePosixPath(path).with_suffix("").parts
        return any(self.is_guarded(f"module {part}") for part in parts if part != "__init__")


def own_members(node: ast.ClassDef) -> Iterator[tuple[str, ast.AST]]:
    """Names that a class's body defines, and attributes that its methods set on `self`."""
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and dotted(inner.value) in ("self", "cls")
        ):
            yield inner.attr, inner
    for statement in statements(node.body):
        if isinstance(statement, ast.ClassDef | FunctionNode):
            yield statement.name, statement
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from ((n.id, statement) for n in targets_of(statement))


def targets_of(statement: ast.Assign | ast.AnnAssign) -> Iterable[ast.Name]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return (n for target in targets for n in ast.walk(target) if isinstance(n, ast.Name))


def _modules_made(node: ast.Assign) -> Iterator[str]:
    for target in node.targets:
        if (
            isinstance(target, ast.Subscript)
            and dotted(target.value) == "sys.modules"
            and isinstance(target.slice, ast.Constant)
        ):
            yield str(target.slice.value)
