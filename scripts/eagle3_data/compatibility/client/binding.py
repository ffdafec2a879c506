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

from eagle3_data.compatibility.client import guards, overrides
from eagle3_data.compatibility.client.flow import Flow, is_vllm
from eagle3_data.compatibility.client.index import ClientIndex, Edge
from eagle3_data.compatibility.client.notes import ClassScope
from eagle3_data.compatibility.client.unpacking import awaited_in_vain
from eagle3_data.compatibility.client.values import (
    BoundMethod,
    Coroutine,
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
from eagle3_data.findings import Finding

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
    title = f"{file.path} cannot be parsed, so its use of vLLM cannot be checked: {headline(error)}"
    remedy = "check that the file is complete, and run this check with the Python version it is written for"
    place = f"{file.path}:{line}" if line else file.path
    return [Finding("client-unparsable", "unknown", title, place, remedy=remedy)]


class FileBinding(Flow, ast.NodeVisitor):
    """Walks one file of the client, twice: first to learn what its classes hold and where its functions are
    called, then to judge."""

    def __init__(self, file: ClientFile, symbols: Symbols, index: ClientIndex) -> None:
        super().__init__(file, symbols, index)
        self._function = ""
        self._in_method = False
        self._held: dict[ast.ClassDef, dict[str, list[Value]]] = {}

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

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if not is_vllm(alias.name):
                self._mentions_module(alias.name)
                self.names[alias.asname or alias.name.split(".")[0]] = None
                continue
            if not self.symbols.tree.has_module(alias.name):
                self.missing_module(node, alias.name)
            self.names[alias.asname or "vllm"] = ModuleSymbol(alias.name if alias.asname else "vllm")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level or not is_vllm(module):
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
            within, self._in_method = self._in_method, bool(self.scope.name)
            if self.scope.name and not within and arguments and arguments[0].arg == "self":
                del self.names["self"]  # a function inside a method may be made for another class
            self._block(node.body)
            self._function, self._in_method = function, within

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name NodeVisitor looks for

    def visit_Lambda(self, node: ast.Lambda) -> None:
        with self._scope():
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                self.names[argument.arg] = None
            self.visit(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for expression in (*node.decorator_list, *node.bases):
            self.visit(expression)
        outer = self.scope, self.attributes, self._holding, self._in_method
        self.scope = self._class_scope(node)
        if self.scope.bases and self.level is not None:
            for finding in overrides.check_subclass(self.file, node, self.scope, self.symbols, self.index):
                self.note(finding, "TypeError")
        self._holding, self._in_method = {}, False
        self.attributes = {name: join_all(held) for name, held in self._held.get(node, {}).items()}
        with self._scope():
            self._block(node.body)
        if self._learning:
            self._held[node] = self._holding
        self.scope, self.attributes, self._holding, self._in_method = outer
        self.names[node.name] = None

    def _class_scope(self, node: ast.ClassDef) -> ClassScope:
        members, foreign = self.index.members(node)
        values = [self.evaluate(base.value if isinstance(base, ast.Subscript) else base) for base in foreign]
        bases = tuple(value for value in values if isinstance(value, ClassSymbol))
        own = {*members, *self.index.members_below(node)}
        whole = len(bases) == len(foreign) > 0 and all(self.symbols.mro(base)[1] for base in bases)
        return ClassScope(node.name, bases, frozenset(own), whole and "__getattr__" not in own)

    def visit_Module(self, node: ast.Module) -> None:
        self._block(node.body)

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
                    remedy="await it, or use a vLLM in which it is not a coroutine",
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
            title = f"{symbol.qualified_name}() is not a coroutine here, so its result cannot be awaited"
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
