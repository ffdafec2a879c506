"""Binds a client's use of vLLM (imports, calls, attributes) against a vLLM source tree. Standard library and
packaging only.

A small abstract interpreter: it follows what each name of the client stands for (a class, a function, a
module of vLLM, an instance of a vLLM class) as far as assignments, annotations and tests of type tell, and
says nothing where it lost the trail. A client written for several versions asks first (`hasattr`, the
version, `try`): what such a question decides is followed as this vLLM decides it, what it leaves open is
`unknown`.
Subclasses of vLLM's classes are checked by `overrides`, functions put in place of a model's forward by
`patched`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from eagle3_data.compatibility.client import guards, overrides
from eagle3_data.compatibility.client.expressions import ClassScope, Expressions
from eagle3_data.compatibility.client.index import ClientIndex, Edge
from eagle3_data.compatibility.client.unpacking import awaited_in_vain, returned_values
from eagle3_data.compatibility.client.values import (
    BoundMethod,
    Coroutine,
    Elements,
    Instance,
    Keywords,
    Value,
    join,
    join_all,
)
from eagle3_data.compatibility.source.client import Client, ClientFile
from eagle3_data.compatibility.source.symbols import (
    ABSENT,
    ClassSymbol,
    FunctionSymbol,
    ModuleSymbol,
    Symbols,
    dotted,
    last_name,
)
from eagle3_data.errors import headline
from eagle3_data.findings import Finding, Level

CHANGES_KEYWORDS = {"pop", "popitem", "clear", "setdefault", "update"}


def check_client(client: Client, symbols: Symbols) -> list[Finding]:
    """Every use of vLLM in the client that will fail, or may."""
    index = ClientIndex.of(client)
    files = [FileBinding(file, symbols, index) for file in client.files]
    for file in files:
        file.learn()
    findings = [finding for file in client.files for finding in _unparsable(file)]
    return list(dict.fromkeys([*findings, *(finding for file in files for finding in file.run())]))


def _unparsable(file: ClientFile) -> list[Finding]:
    error = file.syntax_error
    if error is None:
        return []
    line = getattr(error, "lineno", None)
    title = f"{file.path} cannot be parsed, so what it does with vLLM cannot be judged: {headline(error)}"
    remedy = "see that it is whole, and run this check with the Python that it is written for"
    place = f"{file.path}:{line}" if line else file.path
    return [Finding("client-unparsable", "unknown", title, place, remedy=remedy)]


class FileBinding(Expressions, ast.NodeVisitor):
    """Walks one file of the client, twice: first to learn what its classes hold and where its functions are
    called, then to judge."""

    def __init__(self, file: ClientFile, symbols: Symbols, index: ClientIndex) -> None:
        super().__init__(file, symbols, index)
        self._learning = False
        self._function = ""
        self._held: dict[ast.ClassDef, dict[str, list[Value]]] = {}
        self._holding: dict[str, list[Value]] = {}

    def learn(self) -> None:
        for node in self.file.nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                outer, self.names, self.level = self.names, {}, None
                self.visit(node)
                for name, value in self.names.items():
                    self.imported[name] = join(self.imported.get(name, value), value)
                self.names = outer
        self.level = "fail"
        self._learning = True
        self.visit(self.file.tree)
        self._learning = False

    def run(self) -> list[Finding]:
        self.names, self.findings = {}, []
        self.level = "unknown" if self.index.file_is_guarded(self.file.path) else "fail"
        self.visit(self.file.tree)
        return self.findings

    # --- imports

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not _is_vllm(alias.name):
                self._mentions_module(alias.name)
                self.names[alias.asname or alias.name.split(".")[0]] = None
                continue
            if not self.symbols.tree.has_module(alias.name):
                self.missing_module(node, alias.name)
            self.names[alias.asname or "vllm"] = ModuleSymbol(alias.name if alias.asname else "vllm")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or not _is_vllm(module):
            self._mentions_module(module)
            for alias in node.names:
                self._mentions_module(alias.name)
                self._mentions(alias.name)
                self.names[alias.asname or alias.name] = None
            return
        known = self.symbols.tree.has_module(module)
        if not known:
            self.missing_module(node, module)
        for alias in node.names:
            if alias.name == "*":
                self.names |= self._starred(module) if known else {}
            else:
                self.names[alias.asname or alias.name] = (
                    self._import(node, module, alias.name) if known else None
                )

    def _import(self, node: ast.ImportFrom, module: str, name: str) -> Value:
        if name == "__version__":
            return self.version
        found = self.symbols.importable(module, name)
        if found is not ABSENT:
            return found
        self.missing(node, module, name, "ImportError")
        return None

    def _starred(self, module: str) -> dict[str, Value]:
        names = (name for name in self.symbols.table(module) if not name.startswith("_"))
        return {name: self.symbols.resolve(module, name) for name in names}

    def _mentions_module(self, name: str) -> None:
        for part in name.split("."):
            self._mentions(f"module {part}")

    def _mentions(self, name: str) -> None:
        if self._learning and (name in self.index.functions or name.startswith("module ")):
            self.index.edges[name].add(Edge(self._function, self.level != "fail"))

    # --- definitions

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for expression in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(expression)
        self.names[node.name] = None
        with self._scope():
            function, self._function = self._function, node.name
            if self.level == "fail" and not self._learning and self.index.is_guarded(node.name):
                self.level = "unknown"
            for path in [path for path in self.names if path.startswith("self.")]:
                del self.names[path]
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            for argument in (*arguments, *filter(None, (node.args.vararg, node.args.kwarg))):
                self.names[argument.arg] = (
                    self.annotated(argument.annotation) if argument in arguments else None
                )
            if self.scope.name and arguments and arguments[0].arg == "self":
                del self.names["self"]
            self._block(node.body)
            self._function = function

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name NodeVisitor looks for

    def visit_Lambda(self, node: ast.Lambda) -> None:
        with self._scope():
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                self.names[argument.arg] = None
            self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for expression in (*node.decorator_list, *node.bases):
            self.visit(expression)
        outer = self.scope, self.attributes, self._holding
        self.scope = self._class_scope(node)
        if self.scope.bases and self.level is not None:
            for finding in overrides.check_subclass(self.file, node, self.scope, self.symbols, self.index):
                self.note(finding, "TypeError")
        self._holding = {}
        self.attributes = {name: join_all(held) for name, held in self._held.get(node, {}).items()}
        with self._scope():
            self._block(node.body)
        if self._learning:
            self._held[node] = self._holding
        self.scope, self.attributes, self._holding = outer
        self.names[node.name] = None

    def _class_scope(self, node: ast.ClassDef) -> ClassScope:
        members, foreign = self.index.members(node)
        values = [self.evaluate(base.value if isinstance(base, ast.Subscript) else base) for base in foreign]
        bases = tuple(value for value in values if isinstance(value, ClassSymbol))
        own = {*members, *self.index.members_below(node)}
        whole = len(bases) == len(foreign) > 0 and all(self.symbols.mro(base)[1] for base in bases)
        return ClassScope(node.name, bases, frozenset(own), whole and "__getattr__" not in own)

    # --- statements

    def visit_Module(self, node: ast.Module) -> None:
        self._block(node.body)

    def _block(self, body: Sequence[ast.stmt]) -> Level | None:
        """Statements in order; how sure one of them makes the rest holds to the end of the block, and is
        returned."""
        level = self.level
        for statement in body:
            self.visit(statement)
        end, self.level = self.level, level
        return end

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

    # --- branches

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
        branches = []
        for body, holds in ((node.body, True), (node.orelse, False)):
            names = dict(self.names)
            self.level = open_level if decided is None else level if decided is holds else None
            self._narrow(node.test, holds)
            self._block(body)
            runs = decided in (None, holds) and not guards.leaves(body)
            branches.append((self.names, runs))
            self.names = names
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

    # --- exceptions

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

    # --- expressions

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._discarded.add(id(node.value))
            value = self.evaluate(node.value)
            if isinstance(value, Coroutine):
                title = f"{value.name}() is a coroutine here: called without await, it does nothing"
                self.add(
                    "await-misfit",
                    "fail",
                    node,
                    title,
                    remedy="await it, or use a vLLM where it is none",
                    raises="",
                )
        self.visit(node.value)

    def visit_Await(self, node: ast.Await) -> None:
        call = node.value
        function = self.evaluate(call.func) if isinstance(call, ast.Call) else None
        symbol = function.function if isinstance(function, BoundMethod) else function
        if isinstance(symbol, FunctionSymbol) and awaited_in_vain(symbol):
            open_ended = self.index.replaces(symbol) or (
                isinstance(function, BoundMethod) and self.may_differ(function)
            )
            title = f"{symbol.qualified_name}() is no coroutine here, and its result cannot be awaited"
            self.add("await-misfit", "unknown" if open_ended else "fail", node, title, symbol)
        self.visit(node.value)

    def visit_Call(self, node: ast.Call) -> None:
        self.evaluate(node)
        self._learns_of_call(node)
        for argument in node.args:
            self._opens(argument)
        if isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES_KEYWORDS:
            self._opens(node.func.value, removes=node.func.attr in ("pop", "popitem", "clear"))
        self.generic_visit(node)

    def _learns_of_call(self, node: ast.Call) -> None:
        """`setattr(x, "name", ...)` and its like (`extend_enum`, `monkeypatch.setattr`) put a name there."""
        if not self._learning or len(node.args) < 2 or last_name(node) in guards.ASKS:
            return
        name = node.args[1]
        if isinstance(name, ast.Constant) and isinstance(name.value, str) and name.value.isidentifier():
            owner = self.evaluate(node.args[0])
            if owner is not None or last_name(node) == "setattr":
                self._notes_set(owner, name.value)

    def _opens(self, argument: ast.expr, removes: bool = False) -> None:
        """A dictionary that is handed on may come back with other keys."""
        path = dotted(argument)
        if isinstance(held := self.names.get(path), Keywords):
            self.names[path] = None if removes else Keywords(held.keys, closed=False)

    def visit_Name(self, node: ast.Name) -> None:
        self._mentions(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            self.evaluate(node)
            self._mentions(node.attr)
        self.visit(node.value)

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
    return bool(names) and all(_is_vllm(name) for name in names)


def _is_vllm(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "vllm"
