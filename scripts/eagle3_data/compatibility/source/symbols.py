"""Names of a source tree, resolved as Python would, without importing anything. Standard library only.

What cannot be resolved is told apart: `ABSENT` is certainly not there, `OUTSIDE` leads out of the tree (or is
made at run time) and cannot be judged. Only certain absence may become a failure.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from eagle3_data.compatibility.source.source_tree import SourceTree

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
MAX_DEPTH = 12
TRANSPARENT_BASES = {"object", "ABC", "Protocol", "Generic", "Enum", "IntEnum", "NamedTuple"}


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


@dataclass(frozen=True)
class Unresolved:
    certain: bool


OUTSIDE = Unresolved(certain=False)
ABSENT = Unresolved(certain=True)
Symbol = ClassSymbol | FunctionSymbol | ValueSymbol | ModuleSymbol | Unresolved


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
        self._tables: dict[str, dict[str, Symbol | Alias]] = {}

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
        return OUTSIDE if "__getattr__" in self.table(module) or unparsed else ABSENT

    def lookup(self, module: str, expression: ast.AST) -> Symbol:
        """What a dotted name means inside a module."""
        first, *rest = dotted(expression).split(".")
        if not first:
            return OUTSIDE
        symbol = self.resolve(module, first)
        for attribute in rest:
            symbol = self.resolve(symbol.name, attribute) if isinstance(symbol, ModuleSymbol) else OUTSIDE
        return OUTSIDE if symbol is ABSENT and hasattr(builtins, first) else symbol

    def mro(self, cls: ClassSymbol, seen: Sequence[ClassSymbol] = ()) -> tuple[list[ClassSymbol], bool]:
        """The class and its bases in depth-first order, and whether all bases were found in the tree."""
        classes, complete = [cls], True
        for base in cls.node.bases:
            if last_name(base) in TRANSPARENT_BASES:
                continue
            symbol = self.lookup(cls.module, base.value if isinstance(base, ast.Subscript) else base)
            if isinstance(symbol, ClassSymbol) and symbol != cls and symbol not in seen:
                above, above_complete = self.mro(symbol, (*seen, cls))
                classes += [c for c in above if c not in classes]
                complete &= above_complete
            else:
                complete = False
        return classes, complete

    def has_base(self, cls: ClassSymbol, name: str) -> bool:
        return any(base.name == name for base in self.mro(cls)[0])

    def member(self, cls: ClassSymbol, name: str) -> FunctionSymbol | ValueSymbol | None:
        """A method or attribute of a class or its bases; attributes set on `self` in any method count."""
        classes, _ = self.mro(cls)
        for owner in classes:
            if (found := _own_member(owner, name)) is not None:
                return found
        for owner in classes:
            for node in ast.walk(owner.node):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr == name
                    and isinstance(node.ctx, ast.Store)
                    and dotted(node.value) in ("self", "cls")
                ):
                    return ValueSymbol(owner.module, node, owner)
        return None

    def method(self, cls: ClassSymbol, name: str) -> FunctionSymbol | None:
        found = self.member(cls, name)
        return found if isinstance(found, FunctionSymbol) else None

    def location(self, symbol: Symbol) -> str:
        """`file:line` of a symbol's definition."""
        if isinstance(symbol, ModuleSymbol):
            return self.tree.location(symbol.name, None)
        return "" if isinstance(symbol, Unresolved) else self.tree.location(symbol.module, symbol.node)


def _own_member(owner: ClassSymbol, name: str) -> FunctionSymbol | ValueSymbol | None:
    found: FunctionSymbol | ValueSymbol | None = None
    for statement in statements(owner.node.body):
        if isinstance(statement, FunctionNode):
            if statement.name == name and not is_overload(statement):
                found = FunctionSymbol(owner.module, statement, owner)
        elif isinstance(statement, ast.AnnAssign):
            if dotted(statement.target) == name:
                found = ValueSymbol(owner.module, statement, owner)
        elif isinstance(statement, ast.Assign) and any(
            dotted(target) == name for target in statement.targets
        ):
            found = ValueSymbol(owner.module, statement, owner)
    return found
