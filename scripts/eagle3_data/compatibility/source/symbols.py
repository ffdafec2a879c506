"""Names of a source tree, resolved as Python would, without importing anything. Standard library only.

Unresolved names are distinguished: `ABSENT` is certainly not there, `OUTSIDE` leads out of the tree (or is
made at run time) and cannot be judged. Only certain absence may become a failure.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from eagle3_data.compatibility.source.source_tree import SourceTree

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
MAX_DEPTH = 12
DYNAMIC = re.compile(r"\bsetattr\(self, (?!['\"])|\bself\.__dict__\b")
TRANSPARENT_BASES = {
    "object", "ABC", "Protocol", "Generic", "Enum", "IntEnum", "StrEnum", "NamedTuple", "Struct", "TypedDict",
}  # fmt: skip
"""Bases outside of the tree that add no attribute but those that every such class has."""


@dataclass(frozen=True)
class ClassSymbol:
    module: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name


@dataclass(frozen=True)
class FunctionSymbol:
    module: str
    node: FunctionNode
    owner: ClassSymbol | None = None

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def qualified_name(self) -> str:
        return f"{self.owner.name}.{self.node.name}" if self.owner else self.node.name


@dataclass(frozen=True)
class ValueSymbol:
    """An assigned name; for a class attribute `owner` is the class."""

    module: str
    node: ast.AST
    owner: ClassSymbol | None = None


@dataclass(frozen=True)
class ModuleSymbol:
    name: str


class Unresolved(Enum):
    OUTSIDE = "leads out of the tree, or is made at run time"
    ABSENT = "certainly not there"


OUTSIDE, ABSENT = Unresolved.OUTSIDE, Unresolved.ABSENT
Symbol = ClassSymbol | FunctionSymbol | ValueSymbol | ModuleSymbol | Unresolved


Member = ClassSymbol | FunctionSymbol | ValueSymbol


@dataclass(frozen=True)
class Alias:
    """`from module import name`, or `import module` where name is None."""

    module: str
    name: str | None


def dotted(node: ast.AST | None) -> str:
    """`a.b.c` of a chain of names, else the empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def last_name(node: ast.AST) -> str:
    """`c` of `a.b.c`, `a.b.c(...)` and `a.b.c[...]`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Subscript):
        node = node.value
    return dotted(node).split(".")[-1]


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a body, those inside `if`, `try` and `with` included: any branch may be the one that
    runs."""
    for statement in body:
        yield statement
        for name in (
            ("body", "orelse", "finalbody") if isinstance(statement, ast.If | ast.Try | ast.With) else ()
        ):
            yield from statements(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from statements(handler.body)


def is_overload(function: FunctionNode) -> bool:
    return any(last_name(decorator) == "overload" for decorator in function.decorator_list)


def has_decorator(node: FunctionNode | ast.ClassDef, *names: str) -> bool:
    return any(last_name(decorator) in names for decorator in node.decorator_list)


def import_source(module: str, statement: ast.ImportFrom, is_package: bool) -> str:
    """The absolute name of the module a (possibly relative) `from` import names."""
    if not statement.level:
        return statement.module or ""
    parts = module.split(".")
    parts = parts[: len(parts) - statement.level + is_package]
    return ".".join([*parts, statement.module] if statement.module else parts)


class Symbols:
    """Resolution of names in one source tree."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.index = tree.index
        self._tables: dict[str, dict[str, Symbol | Alias]] = {}
        self._mros: dict[ClassSymbol, tuple[list[ClassSymbol], bool]] = {}
        self._members: dict[tuple[ClassSymbol, str], Member | None] = {}
        self._on_demand: dict[str, set[str] | None] = {}
        self._for_typing: dict[str, set[str]] = {}
        self._below: dict[ClassSymbol, list[ClassSymbol]] = {}
        self._own_names: dict[ClassSymbol, dict[str, Member]] = {}

    def table(self, module: str) -> dict[str, Symbol | Alias]:
        """The names a module defines or imports at its top level."""
        if module in self._tables:
            return self._tables[module]
        table: dict[str, Symbol | Alias] = {}
        self._tables[module] = table  # before it is filled: modules may import each other
        path = self.tree.path_of(module) or ""
        for statement in statements(self.tree.parse(module).body):
            self._enter(table, module, statement, path.endswith("__init__.py"))
        return table

    def _enter(
        self, table: dict[str, Symbol | Alias], module: str, statement: ast.stmt, is_package: bool
    ) -> None:
        if isinstance(statement, ast.ClassDef):
            table[statement.name] = ClassSymbol(module, statement)
        elif isinstance(statement, FunctionNode):
            if not (is_overload(statement) and isinstance(table.get(statement.name), FunctionSymbol)):
                table[statement.name] = FunctionSymbol(module, statement)
        elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
            self._enter_assignment(table, module, statement)
        elif isinstance(statement, ast.ImportFrom):
            source = import_source(module, statement, is_package)
            for alias in statement.names:
                if alias.name == "*":
                    table.update(
                        {
                            name: symbol
                            for name, symbol in self.table(source).items()
                            if not name.startswith("_")
                        }
                    )
                else:
                    table.setdefault(alias.asname or alias.name, Alias(source, alias.name))
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.split(".")[0]
                table.setdefault(name, Alias(alias.name if alias.asname else name, None))

    def _enter_assignment(
        self,
        table: dict[str, Symbol | Alias],
        module: str,
        statement: ast.Assign | ast.AnnAssign | ast.AugAssign,
    ) -> None:
        for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
            for node in ast.walk(target):
                if not isinstance(node, ast.Name):
                    continue
                plain_copy = (
                    isinstance(statement, ast.Assign)
                    and isinstance(statement.value, ast.Name)
                    and statement.value.id != node.id
                )
                known = table.get(statement.value.id) if plain_copy else None  # type: ignore[union-attr]
                table.setdefault(node.id, known or ValueSymbol(module, statement))

    def resolve(self, module: str, name: str | None, depth: int = 0) -> Symbol:
        """What `from module import name` would give; name None: `import module`."""
        if module.split(".")[0] != self.tree.package or depth > MAX_DEPTH:
            return OUTSIDE
        if not self.tree.has_module(module):
            return ABSENT
        if name is None:
            return ModuleSymbol(module)
        found = self.table(module).get(name)
        if isinstance(found, Alias):
            return self.resolve(found.module, found.name, depth + 1)
        if found is not None:
            return found
        if self.tree.has_module(f"{module}.{name}"):
            return ModuleSymbol(f"{module}.{name}")
        unparsed = (
            self.tree.path_of(module) is not None
            and not self.tree.parse(module).body
            and self.tree.source(module).strip()
        )
        return OUTSIDE if self._made_on_demand(module, name) or unparsed else ABSENT

    def importable(self, module: str, name: str) -> Symbol:
        """As `resolve`, but what the module binds under TYPE_CHECKING alone is not there at run time."""
        if module.split(".")[0] == self.tree.package and name in self._typing_only(module):
            return ABSENT
        return self.resolve(module, name)

    def _made_on_demand(self, module: str, name: str) -> bool:
        """Whether the module's `__getattr__` may give the name."""
        if module not in self._on_demand:
            self._on_demand[module] = self._names_on_demand(module)
        names = self._on_demand[module]
        return names is None or name in names

    def _names_on_demand(self, module: str) -> set[str] | None:
        """What the module's `__getattr__` gives, None where that cannot be told. Where it looks names up in a
        dictionary of the module, as those of `vllm` and `vllm.envs` do, those keys are all there is."""
        function = self.table(module).get("__getattr__")
        if not isinstance(function, FunctionSymbol):
            return set() if function is None else None
        nodes = list(ast.walk(function.node))
        keys = [self._keys_of(module, node.id) for node in nodes if isinstance(node, ast.Name)]
        known = [names for names in keys if names is not None]
        words = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
        return words.union(*known) if known else None

    def _keys_of(self, module: str, name: str) -> set[str] | None:
        """The keys of a dictionary that the module writes out under that name."""
        found = self.table(module).get(name)
        value = getattr(found.node, "value", None) if isinstance(found, ValueSymbol) else None
        if not isinstance(value, ast.Dict) or not all(isinstance(key, ast.Constant) for key in value.keys):
            return None
        return {str(key.value) for key in value.keys if isinstance(key, ast.Constant)}

    def _typing_only(self, module: str) -> set[str]:
        if module not in self._for_typing:
            body = self.tree.parse(module).body
            guarded = [s for s in body if isinstance(s, ast.If) and last_name(s.test) == "TYPE_CHECKING"]
            only = {name for block in guarded for name in _bound(block.body)}
            rest = [s for s in body if s not in guarded] + [s for block in guarded for s in block.orelse]
            other = set(_bound(rest)) if only else set()
            self._for_typing[module] = {n for n in only - other if not self._made_on_demand(module, n)}
        return self._for_typing[module]

    def lookup(self, module: str, expression: ast.AST) -> Symbol:
        """What a dotted name means inside a module."""
        first, *rest = dotted(expression).split(".")
        if not first:
            return OUTSIDE
        symbol = self.resolve(module, first)
        for attribute in rest:
            if isinstance(symbol, ModuleSymbol):
                symbol = self.resolve(symbol.name, attribute)
            elif isinstance(symbol, ClassSymbol):
                inner = self.member(symbol, attribute)
                symbol = inner if isinstance(inner, ClassSymbol) else OUTSIDE
            else:
                symbol = OUTSIDE
        return OUTSIDE if symbol is ABSENT and hasattr(builtins, first) else symbol

    def mro(self, cls: ClassSymbol) -> tuple[list[ClassSymbol], bool]:
        """The class and its bases in depth-first order, and whether all bases were found in the tree."""
        if cls not in self._mros:
            self._mros[cls] = [cls], False  # what a circle of bases would meet
            classes, complete = [cls], True
            for base in cls.node.bases:
                if last_name(base) in TRANSPARENT_BASES:
                    continue
                symbol = self.lookup(cls.module, base.value if isinstance(base, ast.Subscript) else base)
                if isinstance(symbol, ClassSymbol) and symbol != cls:
                    above, above_complete = self.mro(symbol)
                    classes += [c for c in above if c not in classes]
                    complete &= above_complete
                else:
                    complete = False
            self._mros[cls] = classes, complete
        return self._mros[cls]

    def has_base(self, cls: ClassSymbol, name: str) -> bool:
        return any(base.name == name for base in self.mro(cls)[0])

    def member(self, cls: ClassSymbol, name: str) -> Member | None:
        """A method, attribute or inner class of a class or its bases; attributes set on `self` in any method
        count."""
        if (cls, name) not in self._members:
            classes, _ = self.mro(cls)
            found = (_own_member(owner, name) for owner in classes)
            on_self = (self._set_on_self(owner).get(name) for owner in classes)
            self._members[cls, name] = next((m for m in (*found, *on_self) if m is not None), None)
        return self._members[cls, name]

    def _set_on_self(self, owner: ClassSymbol) -> dict[str, Member]:
        """The attributes that methods of the class itself set on `self` or `cls`, each with the first
        statement that does."""
        if owner not in self._own_names:
            names: dict[str, Member] = {}
            for node in ast.walk(owner.node):
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.For | ast.With):
                    for target in _attributes_set(node):
                        names.setdefault(target.attr, ValueSymbol(owner.module, node, owner))
            self._own_names[owner] = names
        return self._own_names[owner]

    def is_dynamic(self, cls: ClassSymbol) -> bool:
        """Whether instances may have attributes that the source does not name."""
        return any(self.member(cls, name) for name in ("__getattr__", "__getattribute__")) or any(
            DYNAMIC.search(ast.unparse(owner.node)) for owner in self.mro(cls)[0]
        )

    def below(self, cls: ClassSymbol) -> list[ClassSymbol]:
        """The classes of the tree that derive from `cls`."""
        if cls not in self._below:
            found = (self.resolve(module, name) for module, name in self.index.derived(cls.name))
            self._below[cls] = [c for c in found if isinstance(c, ClassSymbol) and cls in self.mro(c)[0]]
        return self._below[cls]

    def method(self, cls: ClassSymbol, name: str) -> FunctionSymbol | None:
        found = self.member(cls, name)
        return found if isinstance(found, FunctionSymbol) else None

    def location(self, symbol: Symbol) -> str:
        """`file:line` of a symbol's definition."""
        if isinstance(symbol, ModuleSymbol):
            return self.tree.location(symbol.name, None)
        return "" if isinstance(symbol, Unresolved) else self.tree.location(symbol.module, symbol.node)


def _attributes_set(node: ast.AST) -> Iterator[ast.Attribute]:
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Store)
            and dotted(inner.value) in ("self", "cls")
        ):
            yield inner


def _bound(body: Iterable[ast.stmt]) -> Iterator[str]:
    """Names that statements of a module bind."""
    for statement in statements(body):
        if isinstance(statement, ast.ClassDef | FunctionNode):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in statement.names)
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            yield from (
                n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            )


def _own_member(owner: ClassSymbol, name: str) -> Member | None:
    found: Member | None = None
    for statement in statements(owner.node.body):
        if isinstance(statement, FunctionNode):
            if statement.name == name and not is_overload(statement) and not _is_accessor(statement):
                found = FunctionSymbol(owner.module, statement, owner)
        elif isinstance(statement, ast.ClassDef):
            if statement.name == name:
                found = ClassSymbol(owner.module, statement)
        elif isinstance(statement, ast.AnnAssign):
            if dotted(statement.target) == name:
                found = ValueSymbol(owner.module, statement, owner)
        elif isinstance(statement, ast.Assign) and any(
            isinstance(node, ast.Name) and node.id == name
            for target in statement.targets
            for node in ast.walk(target)
        ):
            found = ValueSymbol(owner.module, statement, owner)
    return found


def _is_accessor(function: FunctionNode) -> bool:
    """`@name.setter` and `@name.deleter` belong to the property that came before."""
    return has_decorator(function, "setter", "deleter")
