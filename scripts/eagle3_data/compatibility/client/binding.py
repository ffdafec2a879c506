"""Binds a client's use of vLLM (imports, calls, attributes) against a vLLM source tree. Standard library
only.

A small abstract interpreter: it follows what each name of the client stands for (a class, a function, a
module of vLLM, an instance of a vLLM class) as far as assignments and annotations tell, and says nothing
where it lost the trail. Subclasses of vLLM's classes are checked by `overrides`, functions put in place of a
model's forward by `patched`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from eagle3_data.compatibility.client import overrides
from eagle3_data.compatibility.source.client import Client, ClientFile
from eagle3_data.compatibility.source.signatures import (
    Signature,
    bind,
    of_constructor,
    of_function,
    of_method,
)
from eagle3_data.compatibility.source.symbols import (
    ABSENT,
    ClassSymbol,
    FunctionSymbol,
    ModuleSymbol,
    Symbol,
    Symbols,
    ValueSymbol,
    dotted,
    has_decorator,
    last_name,
)
from eagle3_data.errors import headline
from eagle3_data.findings import Finding, Level

SECOND_PHASE = {"execute_model": "sample_tokens"}
"""Calls whose result may be None until a second call is made: discarding it loses the protocol's second
half."""
VALUE_TYPES = {"Enum", "IntEnum", "StrEnum", "NamedTuple", "Struct"}
IMPORT_GUARDS = {"ImportError", "ModuleNotFoundError", "Exception", "AttributeError"}


@dataclass(frozen=True)
class Instance:
    """A value known to be an instance of a vLLM class."""

    cls: ClassSymbol


@dataclass(frozen=True)
class BoundMethod:
    cls: ClassSymbol
    function: FunctionSymbol


Value = Symbol | Instance | BoundMethod | None


def check_client(client: Client, symbols: Symbols) -> list[Finding]:
    """Every use of vLLM in the client that will fail, or may."""
    findings: list[Finding] = []
    for file in client.files:
        findings += _unparsable(file)
        findings += FileBinding(file, symbols).run()
    return list(dict.fromkeys(findings))


def _unparsable(file: ClientFile) -> list[Finding]:
    error = file.syntax_error
    if error is None:
        return []
    line = getattr(error, "lineno", None)
    title = f"{file.path} cannot be parsed, so what it does with vLLM cannot be judged: {headline(error)}"
    remedy = "see that it is whole, and run this check with the Python that it is written for"
    return [
        Finding(
            "client-unparsable", "unknown", title, f"{file.path}:{line}" if line else file.path, remedy=remedy
        )
    ]


class FileBinding(ast.NodeVisitor):
    """Walks one file of the client."""

    def __init__(self, file: ClientFile, symbols: Symbols) -> None:
        self.file = file
        self.symbols = symbols
        self.findings: list[Finding] = []
        self.names: dict[str, Value] = {}
        self.attributes: dict[str, Value] = {}
        self.probed = _probed_names(file.tree)
        self._discarded: set[int] = set()

    def run(self) -> list[Finding]:
        self._imports(self.file.tree.body, "fail")
        imported = self.findings
        self.visit(self.file.tree)  # learns which attributes of `self` hold what
        self.findings = []
        self.visit(self.file.tree)
        return [*imported, *self.findings]

    # --- findings

    def _add(
        self,
        name: str,
        level: Level,
        node: ast.AST,
        title: str,
        symbol: Symbol | None = None,
        remedy: str = "",
    ) -> None:
        place = "" if symbol is None else self.symbols.location(symbol)
        remedy = (
            remedy
            or "use a client written for this vLLM, or a vLLM the client was written for"
            " (`matrix` shows pairs)"
        )
        self.findings.append(Finding(name, level, title, self.file.location(node), place, remedy=remedy))

    # --- imports

    def _imports(self, body: list[ast.stmt], level: Level | None) -> None:
        """Resolve imports; in a guarded `try` absence is expected (warn), under TYPE_CHECKING it is harmless
        (None)."""
        for statement in body:
            if isinstance(statement, ast.Import):
                self._import(statement, level)
            elif isinstance(statement, ast.ImportFrom) and not statement.level and _is_vllm(statement.module):
                self._import_from(statement, level)
            elif isinstance(statement, ast.If) and last_name(statement.test) == "TYPE_CHECKING":
                self._imports(statement.body, None)
                self._imports(statement.orelse, level)
            elif isinstance(statement, ast.Try) and any(
                _guards_imports(handler) for handler in statement.handlers
            ):
                self._imports(statement.body, level and "warn")
                for handler in statement.handlers:
                    self._imports(handler.body, level and "warn")
                self._imports([*statement.orelse, *statement.finalbody], level)
            else:
                conditional = isinstance(statement, ast.If)
                for name in ("body", "orelse", "finalbody"):
                    self._imports(getattr(statement, name, []), level and ("warn" if conditional else level))
                for handler in getattr(statement, "handlers", []):
                    self._imports(handler.body, level)

    def _import(self, statement: ast.Import, level: Level | None) -> None:
        for alias in statement.names:
            if not _is_vllm(alias.name):
                continue
            if level and not self.symbols.tree.has_module(alias.name):
                self._add(
                    "missing-module", level, statement, f"module {alias.name} does not exist in this vLLM"
                )
            self.names[alias.asname or "vllm"] = ModuleSymbol(alias.name if alias.asname else "vllm")

    def _import_from(self, statement: ast.ImportFrom, level: Level | None) -> None:
        module = statement.module or ""
        if not self.symbols.tree.has_module(module):
            if level:
                self._add("missing-module", level, statement, f"module {module} does not exist in this vLLM")
            return
        for alias in statement.names:
            found = self.symbols.resolve(module, alias.name)
            if found is ABSENT:
                if level:
                    self._add(
                        "missing-name",
                        level,
                        statement,
                        f"{module} has no '{alias.name}'",
                        ModuleSymbol(module),
                    )
            else:
                self.names[alias.asname or alias.name] = found

    # --- statements

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        with self._scope():
            for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                self.names[argument.arg] = (
                    self._annotated(argument.annotation) if argument.annotation else None
                )
            self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - the name NodeVisitor looks for

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self.attributes = self.attributes, {}
        bases = [base for base in map(self.evaluate, node.bases) if isinstance(base, ClassSymbol)]
        if bases:
            self.findings += overrides.check_subclass(self.file, node, bases, self.symbols)
        for _ in range(2):  # the second round knows the attributes that any method sets
            self.generic_visit(node)
        self.attributes = outer

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self._assign(target, value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assign(
            node.target,
            (self.evaluate(node.value) if node.value else None) or self._annotated(node.annotation),
        )
        self.generic_visit(node)

    def visit_For(self, node: ast.For) -> None:
        for target in (n for n in ast.walk(node.target) if isinstance(n, ast.Name)):
            self.names[target.id] = None
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._discarded.add(id(node.value))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self.evaluate(node)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.evaluate(node)
        self.generic_visit(node)

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
        elif isinstance(target, ast.Attribute) and dotted(target.value) == "self":
            self.attributes[target.attr] = value
        elif isinstance(target, ast.Tuple | ast.List):
            for element in target.elts:
                self._assign(element, None)

    @contextmanager
    def _scope(self) -> Iterator[None]:
        outer, self.names = self.names, dict(self.names)
        yield
        self.names = outer

    # --- expressions

    def evaluate(self, node: ast.expr) -> Value:
        """What an expression stands for, None where the trail is lost; findings are noted on the way."""
        if isinstance(node, ast.Name):
            return self.names.get(node.id)
        if isinstance(node, ast.NamedExpr):
            value = self.evaluate(node.value)
            self.names[node.target.id] = value
            return value
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        return None

    def _attribute(self, node: ast.Attribute) -> Value:
        if dotted(node.value) == "self":
            return self.attributes.get(node.attr)
        base = self.evaluate(node.value)
        if isinstance(base, ModuleSymbol):
            found = self.symbols.resolve(base.name, node.attr)
            if found is ABSENT and not node.attr.startswith("__") and node.attr not in self.probed:
                self._add("missing-name", "fail", node, f"{base.name} has no '{node.attr}'", base)
            return found
        cls = base.cls if isinstance(base, Instance) else base
        if not isinstance(cls, ClassSymbol) or node.attr.startswith("__"):
            return None
        member = self.symbols.member(cls, node.attr)
        if member is None:
            self._missing_member(node, cls, isinstance(base, Instance))
            return None
        return self._member_value(cls, member)

    def _missing_member(self, node: ast.Attribute, cls: ClassSymbol, of_instance: bool) -> None:
        classes, complete = self.symbols.mro(cls)
        bases = {last_name(base) for owner in classes for base in owner.node.bases}
        dynamic = any(self.symbols.member(cls, name) for name in ("__getattr__", "__getattribute__"))
        if not complete or dynamic or node.attr in self.probed or (of_instance and bases & VALUE_TYPES):
            return
        self._add("missing-name", "fail", node, f"{cls.name} has no '{node.attr}'", cls)

    def _member_value(self, cls: ClassSymbol, member: FunctionSymbol | ValueSymbol) -> Value:
        if isinstance(member, FunctionSymbol):
            if has_decorator(member.node, "property", "cached_property"):
                return self._annotated(member.node.returns, member.module) if member.node.returns else None
            return BoundMethod(cls, member)
        return (
            self._annotated(member.node.annotation, member.module)
            if isinstance(member.node, ast.AnnAssign)
            else None
        )

    def _annotated(self, annotation: ast.expr | None, module: str = "") -> Value:
        """The instance an annotation promises; of a union only where exactly one vLLM class is in it."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(annotation, ast.BinOp):
            found = {self._annotated(side, module) for side in (annotation.left, annotation.right)} - {None}
            return found.pop() if len(found) == 1 else None
        if isinstance(annotation, ast.Subscript) and last_name(annotation) == "Optional":
            return self._annotated(annotation.slice, module)
        if not isinstance(annotation, ast.Name | ast.Attribute):
            return None
        symbol = self.symbols.lookup(module, annotation) if module else self.evaluate(annotation)
        return Instance(symbol) if isinstance(symbol, ClassSymbol) else None

    def _call(self, node: ast.Call) -> Value:
        function = self.evaluate(node.func)
        if isinstance(function, ClassSymbol):
            self._bind(
                node, of_constructor(self.symbols, function), function.name, self._constructor(function)
            )
            return Instance(function)
        if isinstance(function, BoundMethod):
            self._bind(
                node,
                of_method(function.function),
                f"{function.cls.name}.{function.function.name}",
                function.function,
            )
            self._result_used(node, function)
            return (
                self._annotated(function.function.node.returns, function.function.module)
                if function.function.node.returns
                else None
            )
        if isinstance(function, FunctionSymbol):
            self._bind(node, of_function(function, bound=False), function.name, function)
            return self._annotated(function.node.returns, function.module) if function.node.returns else None
        return None

    def _constructor(self, cls: ClassSymbol) -> Symbol:
        return self.symbols.method(cls, "__init__") or cls

    def _bind(self, node: ast.Call, signature: Signature | None, name: str, symbol: Symbol) -> None:
        for misfit in bind(node, signature) if signature else ():
            self._add(misfit.id, "fail", node, f"{name}() {misfit.message}", symbol)

    def _result_used(self, node: ast.Call, method: BoundMethod) -> None:
        second = SECOND_PHASE.get(method.function.name)
        returns = method.function.node.returns
        if id(node) not in self._discarded or second is None or returns is None:
            return
        if (
            not re.search(r"\bNone\b", ast.unparse(returns))
            or self.symbols.member(method.cls, second) is None
        ):
            return
        title = (
            f"{method.cls.name}.{method.function.name}() may return None and then wants {second}(); its"
            " result is discarded"
        )
        self._add(
            "discarded-result",
            "warn",
            node,
            title,
            method.function,
            remedy=f"call {second}() where {method.function.name}() returns None",
        )


def _is_vllm(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "vllm"


def _guards_imports(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(last_name(kind) in IMPORT_GUARDS for kind in types)


def _probed_names(tree: ast.Module) -> set[str]:
    """Names the file asks for with `hasattr` or `getattr`: it knows they may be absent."""
    calls = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and last_name(node) in ("hasattr", "getattr") and len(node.args) > 1
    )
    return {str(call.args[1].value) for call in calls if isinstance(call.args[1], ast.Constant)}
