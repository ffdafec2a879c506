"""What the client's expressions stand for, and how its questions about vLLM come out. Standard library and
packaging only."""

from __future__ import annotations

import ast

from eagle3_data.compatibility.client.calls import Calls
from eagle3_data.compatibility.client.guards import compare_versions, speaks_of_versions
from eagle3_data.compatibility.client.values import (
    NOTHING,
    PROBE,
    Constant,
    Elements,
    Instance,
    Keywords,
    Probe,
    Value,
    join,
)
from eagle3_data.compatibility.source.symbols import (
    ABSENT,
    OUTSIDE,
    ClassSymbol,
    FunctionSymbol,
    ModuleSymbol,
    dotted,
)


class Expressions(Calls):
    """Evaluates expressions of one file."""

    def evaluate(self, node: ast.expr | None) -> Value:
        """What an expression stands for, None where the trail is lost; findings are noted on the way."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.Constant):
            return Constant(node.value) if node.value is None or isinstance(node.value, bool | str) else None
        if isinstance(node, ast.NamedExpr):
            value = self.evaluate(node.value)
            self.names[node.target.id] = value
            return value
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Await):
            return self._awaited(node)
        if isinstance(node, ast.Dict):
            return _keywords_of(node)
        if isinstance(node, ast.IfExp):
            decided = self.decide(node.test)
            if decided is not None:
                return self.evaluate(node.body if decided else node.orelse)
            return join(self.evaluate(node.body), self.evaluate(node.orelse))
        if isinstance(node, ast.Subscript):
            base = self.evaluate(node.value)
            whole = isinstance(node.slice, ast.Slice)
            return base if whole else base.item if isinstance(base, Elements) else None
        if isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp):
            decided = self.decide(node)
            return Constant(decided) if decided is not None else PROBE if self.asks(node) else None
        return None

    def decide(self, test: ast.expr) -> bool | None:
        """How a test comes out with this vLLM, where that follows from its source and version."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.decide(test.operand)
            return None if inner is None else not inner
        if isinstance(test, ast.BoolOp):
            outcomes = [self.decide(value) for value in test.values]
            deciding = isinstance(test.op, ast.Or)
            if deciding in outcomes:
                return deciding
            return None if None in outcomes else not deciding
        if isinstance(test, ast.Compare) and len(test.ops) == 1:
            return self._compared(test.left, test.ops[0], test.comparators[0])
        if isinstance(test, ast.Call) and dotted(test.func) == "hasattr" and len(test.args) == 2:
            return self._has(test.args[0], test.args[1])
        if isinstance(test, ast.Compare | ast.UnaryOp):
            return None
        value = self.evaluate(test)
        if isinstance(value, Constant):
            return bool(value.value)
        return True if isinstance(value, ClassSymbol | FunctionSymbol | ModuleSymbol) else None

    def asks(self, test: ast.expr) -> bool:
        """Whether a test that is not decided asks what this vLLM can do."""
        return speaks_of_versions(test) or any(
            isinstance(self.names.get(node.id), Probe)
            for node in ast.walk(test)
            if isinstance(node, ast.Name)
        )

    def _compared(self, left: ast.expr, comparison: ast.cmpop, right: ast.expr) -> bool | None:
        first, second = self.evaluate(left), self.evaluate(right)
        if isinstance(comparison, ast.Is | ast.IsNot) and second == NOTHING:
            if isinstance(first, Constant | ClassSymbol | FunctionSymbol | ModuleSymbol):
                return (first == NOTHING) == isinstance(comparison, ast.Is)
            return None
        values = [side.value for side in (first, second) if isinstance(side, Constant)]
        if len(values) == 2 and isinstance(values[0], str) and isinstance(values[1], str):
            return compare_versions(values[0], comparison, values[1])
        return None

    def _has(self, owner: ast.expr, name: ast.expr) -> bool | None:
        base = self.evaluate(owner)
        if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
            return None
        if isinstance(base, ModuleSymbol) and not self.index.sets(base.name, name.value):
            found = self.symbols.resolve(base.name, name.value)
            return None if found is OUTSIDE else found is not ABSENT
        cls = base.cls if isinstance(base, Instance) else base
        if not isinstance(cls, ClassSymbol):
            return None
        if self.symbols.member(cls, name.value) is not None:
            return True
        certain = not isinstance(base, Instance) or base.exact
        return False if certain and self._certainly_lacks(cls, name.value) else None


def _keywords_of(node: ast.Dict) -> Keywords:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return Keywords(frozenset(keys), closed=len(keys) == len(node.keys))
