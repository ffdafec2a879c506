"""What assignments of the client make its names and vLLM's objects stand for. Standard library and packaging
only."""

from __future__ import annotations

import ast

from eagle3_data.compatibility.client.expressions import Expressions
from eagle3_data.compatibility.client.index import ClientIndex
from eagle3_data.compatibility.client.unpacking import returned_values
from eagle3_data.compatibility.client.values import (
    BoundMethod,
    Instance,
    Keywords,
    Value,
)
from eagle3_data.compatibility.source.client import ClientFile
from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    FunctionSymbol,
    ModuleSymbol,
    Symbols,
    dotted,
)


class Assignments(Expressions, ast.NodeVisitor):
    """Follows assignments. `_holding` collects what the class at hand sets on `self`; while learning, what
    the client sets on vLLM's objects is noted in the index."""

    def __init__(self, file: ClientFile, symbols: Symbols, index: ClientIndex) -> None:
        super().__init__(file, symbols, index)
        self._learning = False
        self._holding: dict[str, list[Value]] = {}

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        self.visit(node.value)
        for target in node.targets:
            self._unpacked(target, node.value)
            self._assign(target, value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
        declared = self.annotated(node.annotation)
        if declared is None and node.value is not None and isinstance(node.annotation, ast.Subscript):
            declared = self.evaluate(node.value)  # `x: dict[str, Any] = {...}`
        if isinstance(declared, Instance) and node.value is not None:
            given = self.evaluate(node.value)
            declared = given if isinstance(given, Instance) and given.exact else declared
        self._assign(node.target, declared)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        self._assign(node.target, None)

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._assign(target.value if isinstance(target, ast.Subscript) else target, None)

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Starred):
            target, value = target.value, None
        if isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._assign(element, None)
            return
        if isinstance(target, ast.Subscript):
            self._assign_key(target)
            return
        if isinstance(target, ast.Attribute):
            self._set_attribute(target, value)
        if path := dotted(target):
            for below in [name for name in self.names if name.startswith(f"{path}.")]:
                del self.names[below]
            self.names[path] = value

    def _set_attribute(self, target: ast.Attribute, value: Value) -> None:
        if dotted(target.value) == "self" and "self" not in self.names:
            self._holding.setdefault(target.attr, []).append(value)
            return
        self.visit(target.value)
        if self._learning:
            self._notes_set(self.evaluate(target.value), target.attr)

    def _notes_set(self, owner: Value, name: str) -> None:
        cls = owner.cls if isinstance(owner, Instance) else owner
        known = cls.name if isinstance(cls, ClassSymbol | ModuleSymbol) else ""
        self.index.attributes_set[known].add(name)

    def _assign_key(self, target: ast.Subscript) -> None:
        path = dotted(target.value)
        held, key = self.names.get(path), target.slice
        if not isinstance(held, Keywords):
            self.visit(target.value)
        elif isinstance(key, ast.Constant) and isinstance(key.value, str):
            self.names[path] = Keywords(held.keys | {key.value}, held.closed)
        else:
            self.names[path] = Keywords(held.keys, closed=False)

    def _unpacked(self, target: ast.expr, value: ast.expr) -> None:
        """`a, b = f()` where `f` returns another number of values."""
        if not isinstance(target, ast.Tuple) or any(isinstance(e, ast.Starred) for e in target.elts):
            return
        call = value.value if isinstance(value, ast.Await) else value
        function = self.evaluate(call.func) if isinstance(call, ast.Call) else None
        symbol = function.function if isinstance(function, BoundMethod) else function
        count = returned_values(symbol) if isinstance(symbol, FunctionSymbol) else None
        if count is None or count == len(target.elts) or not isinstance(symbol, FunctionSymbol):
            return
        open_ended = self.index.replaces(symbol) or (
            isinstance(function, BoundMethod) and self.may_differ(function)
        )
        title = f"{symbol.qualified_name}() returns {count} values, and the client unpacks {len(target.elts)}"
        self.add(
            "unpack-misfit", "unknown" if open_ended else "fail", value, title, symbol, raises="ValueError"
        )
