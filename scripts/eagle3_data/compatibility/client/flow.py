"""Which statements of the client run with this vLLM, and what its names stand for in each branch. Standard
library and packaging only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from eagle3_data.compatibility.client import guards
from eagle3_data.compatibility.client.assignments import Assignments
from eagle3_data.compatibility.client.values import (
    Elements,
    Instance,
    Value,
    join,
    join_all,
)
from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    dotted,
    last_name,
)
from eagle3_data.findings import Finding, Level

MISFITS = {"missing-argument", "unexpected-argument"}
"""A call's arguments are not those that this vLLM takes."""


class Flow(Assignments, ast.NodeVisitor):
    """Follows branches, loops, tests of type, and handlers of exceptions."""

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        level, decided = self.level, self.decide(node.test)
        if last_name(node.test) == "TYPE_CHECKING":
            self.level = None
            self._block(node.body)
            self.level = level
            self._block(node.orelse)
            return
        open_level: Level | None = "unknown" if level == "fail" and self.asks(node.test) else level
        branches, found = [], []
        for body, holds in ((node.body, True), (node.orelse, False)):
            names, before = dict(self.names), len(self.findings)
            self.level = open_level if decided is None else level if decided is holds else None
            self._narrow(node.test, holds)
            self._block(body)
            runs = decided in (None, holds) and not guards.leaves(body)
            branches.append((self.names, runs))
            found.append(range(before, len(self.findings)))
            self.names = names
        if decided is None:
            self._excuse_other_forms(node, found)
        after = [names for names, runs in branches if runs]
        if len(after) == len(branches):
            self.names = _joined(*after)
        else:
            self.names = after[0] if after else self.names
        leaves = [guards.leaves(body) for body in (node.body, node.orelse)]
        self.level = level
        if decided is not None and leaves[not decided]:
            self.level = None  # the rest of the block is never reached
        elif decided is None and any(leaves):
            self.level = open_level

    def _excuse_other_forms(self, node: ast.If, found: Sequence[range]) -> None:
        """A call that does not fit is written for another vLLM where the other branch makes the same call in
        a form that fits, and the test asks for what only one of the two passes."""
        asked = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
        calls = [list(guards.calls_with(body, asked)) for body in (node.body, node.orelse)]
        misfits = [
            {self.findings[n].client_location for n in places if self.findings[n].id in MISFITS}
            for places in found
        ]
        for mine, other in ((0, 1), (1, 0)):
            fitting = {
                (function, passes)
                for function, passes, call in calls[other]
                if self.file.location(call) not in misfits[other]
            }
            excused = {
                self.file.location(call)
                for function, passes, call in calls[mine]
                if (function, not passes) in fitting
            }
            for n in found[mine]:
                finding = self.findings[n]
                if finding.id in MISFITS and finding.client_location in excused:
                    self.findings[n] = replace(finding, level="unknown")
                    self.raises[self.findings[n]] = self.raises[finding]

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        decided, level = self.decide(node.test), self.level
        open_level: Level | None = "unknown" if level == "fail" and self.asks(node.test) else level
        for value, holds in ((node.body, True), (node.orelse, False)):
            names = dict(self.names)
            self.level = open_level if decided is None else level if decided is holds else None
            self._narrow(node.test, holds)
            self.visit(value)
            self.names, self.level = names, level

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        names, level = dict(self.names), self.level
        continues = isinstance(node.op, ast.And)
        for value in node.values:
            self.visit(value)
            decided = self.decide(value)
            if decided is (not continues):
                self.level = None
            elif decided is None and self.level == "fail" and self.asks(value):
                self.level = "unknown"
            self._narrow(value, continues)
        self.names, self.level = names, level

    def _narrow(self, test: ast.expr, holds: bool) -> None:
        for asked, classes in guards.narrowings(test, holds):
            if path := dotted(asked):
                kinds = classes.elts if isinstance(classes, ast.Tuple) else [classes]
                found = [self.evaluate(kind) for kind in kinds]
                self.names[path] = join_all(
                    Instance(c) if isinstance(c, ClassSymbol) else None for c in found
                )

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)
        self._narrow(node.test, True)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        with self._scope():
            for generator in node.generators:
                self.visit(generator.iter)
                values = self.evaluate(generator.iter)
                self._assign(
                    generator.target,
                    values.item if isinstance(values, Elements) and not values.mapping else None,
                )
                for test in generator.ifs:
                    self.visit(test)
                    self._narrow(test, True)
            for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
                self.visit(part)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        values = self.evaluate(node.iter)
        before = dict(self.names)
        self._assign(
            node.target, values.item if isinstance(values, Elements) and not values.mapping else None
        )
        self._block(node.body)
        self.names = _joined(before, self.names)
        self._block(node.orelse)

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_While(self, node: ast.While) -> None:
        self.visit(node.test)
        before = dict(self.names)
        self._narrow(node.test, True)
        self._block(node.body)
        self.names = _joined(before, self.names)
        self._block(node.orelse)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, None)
        suppressed = [i.context_expr for i in node.items if last_name(i.context_expr) == "suppress"]
        if not suppressed:
            self.level = self._block(node.body)
            return
        types = [kind for call in suppressed if isinstance(call, ast.Call) for kind in call.args]
        handler = ast.ExceptHandler(ast.Tuple(types, ast.Load()), None, [])
        self._guarded(node.body, [handler])

    visit_AsyncWith = visit_With  # noqa: N815

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        before, after = dict(self.names), []
        for case in node.cases:
            self.names = dict(before)
            self.names[dotted(node.subject)] = None
            for inner in ast.walk(case.pattern):
                if isinstance(inner, ast.MatchAs | ast.MatchStar) and inner.name:
                    self.names[inner.name] = None
            self._block(case.body)
            after.append(self.names)
        self.names = before
        for names in after:
            self.names = _joined(self.names, names)

    def visit_Try(self, node: ast.Try | ast.TryStar) -> None:
        handlers = [handler for handler in node.handlers if not guards.passes_on(handler)]
        end = self._guarded(node.body, handlers, node.orelse)
        for handler in node.handlers:
            if handler not in handlers:
                names = dict(self.names)
                self._block(handler.body)
                self.names = names
        self._block(node.finalbody)
        if all(guards.leaves(handler.body) for handler in node.handlers):
            self.level = end

    visit_TryStar = visit_Try  # noqa: N815

    def _guarded(
        self, body: Sequence[ast.stmt], handlers: Sequence[ast.ExceptHandler], orelse: Sequence[ast.stmt] = ()
    ) -> Level | None:
        """A body whose exceptions are handled: a handler runs for certain where the body is certain to raise
        what it catches, never where the body only imports what is there, and perhaps otherwise."""
        before, level, found = dict(self.names), self.level, self.findings
        self.findings = []
        end = self._block(body)
        inside, self.findings = self.findings, found
        certain: set[int] = set()
        for finding in dict.fromkeys(inside):
            raised = self.raises.get(finding, "")
            handler = next((h for h in handlers if raised and guards.catches(h, raised)), None)
            if handler is not None and finding.level == "fail":
                certain.add(id(handler))
            self.findings.append(_handled(finding) if handler is not None else finding)
        self._block(orelse)
        after = [] if certain else [self.names]
        sure = not certain and all(_imports_vllm(statement) for statement in body)
        for handler in handlers:
            self.names = dict(before)
            self.names |= {handler.name: None} if handler.name else {}
            self.level = level
            if id(handler) not in certain:
                self.level = None if sure or level is None else "unknown"
            self._block(handler.body)
            if not guards.leaves(handler.body) and not sure and (not certain or id(handler) in certain):
                after.append(self.names)
        self.level = level
        self.names = after[0] if after else before
        for names in after[1:]:
            self.names = _joined(self.names, names)
        return end

    def _block(self, body: Sequence[ast.stmt]) -> Level | None:
        """Statements in order; how sure one of them makes the rest holds to the end of the block, and is
        returned."""
        level = self.level
        for statement in body:
            self.visit(statement)
        end, self.level = self.level, level
        return end

    @contextmanager
    def _scope(self) -> Iterator[None]:
        outer, self.names, level = self.names, dict(self.names), self.level
        yield
        self.names, self.level = outer, level


def _joined(first: dict[str, Value], second: dict[str, Value]) -> dict[str, Value]:
    """Names after two branches; one that only one of them knows is kept, for the other does not use it."""
    return {
        **first,
        **second,
        **{name: join(first[name], second[name]) for name in first.keys() & second.keys()},
    }


def _handled(finding: Finding) -> Finding:
    return replace(finding, level="warn") if finding.level == "fail" else finding


def _imports_vllm(statement: ast.stmt) -> bool:
    names = [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
    names += [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
    return bool(names) and all(is_vllm(name) for name in names)


def is_vllm(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "vllm"
