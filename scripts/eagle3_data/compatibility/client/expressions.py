"""What the client's expressions stand for, and whether its calls and attributes fit. Standard library and
packaging only."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from eagle3_data.compatibility.client.guards import compare_versions, speaks_of_versions
from eagle3_data.compatibility.client.index import ClientIndex
from eagle3_data.compatibility.client.values import (
    NOTHING,
    PROBE,
    BoundMethod,
    Constant,
    Coroutine,
    Elements,
    Instance,
    Keywords,
    Probe,
    Value,
    join,
)
from eagle3_data.compatibility.client.versions import VLLM_DISTRIBUTIONS
from eagle3_data.compatibility.source.client import ClientFile
from eagle3_data.compatibility.source.signatures import (
    Misfit,
    Signature,
    Spread,
    bind,
    is_static,
    misplaced,
    of_constructor,
    of_function,
    of_method,
)
from eagle3_data.compatibility.source.symbols import (
    ABSENT,
    OUTSIDE,
    ClassSymbol,
    FunctionSymbol,
    Member,
    ModuleSymbol,
    Symbol,
    Symbols,
    ValueSymbol,
    dotted,
    has_decorator,
    last_name,
)
from eagle3_data.findings import Finding, Level

REMEDY = "use a client written for this vLLM, or a vLLM the client was written for (`matrix` shows pairs)"
SECOND_PHASE = {"execute_model": "sample_tokens"}
"""Calls whose result may be None until a second call is made: discarding it loses the protocol's second
half."""
OF_EVERY_MEMBER = {
    "Enum": {"name", "value"},
    "NamedTuple": {"_asdict", "_replace", "_fields", "count", "index"},
    "TypedDict": {"get", "keys", "values", "items", "update", "pop", "setdefault", "copy"},
}
"""What instances of such classes have from Python."""
LISTS = {"list", "List", "Sequence", "Iterable", "Iterator", "set", "frozenset", "deque", "tuple", "Tuple"}
MAPPINGS = {"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"}
OPTIONAL = {"Optional", "Annotated", "Final", "ClassVar"}
LOOKS_UP = {"values", "get", "copy", "pop"}
OF_COROUTINES = {"send", "throw", "close"}
ELSEWHERE_SHOWN = 2


@dataclass(frozen=True)
class ClassScope:
    """The client's class whose methods are looked at. `bases` are its vLLM classes, `own` what it and the
    client's other classes around it define; `complete`: there is no base that is neither."""

    name: str = ""
    bases: tuple[ClassSymbol, ...] = ()
    own: frozenset[str] = frozenset()
    complete: bool = False
    told: set[str] = field(default_factory=set)


class Expressions:
    """Evaluates expressions of one file. `names` are what dotted names (`x`, `self.runner`) stand for now;
    `level` is how sure it is that what is looked at runs with this vLLM, None where it does not."""

    def __init__(self, file: ClientFile, symbols: Symbols, index: ClientIndex) -> None:
        self.file = file
        self.symbols = symbols
        self.index = index
        self.findings: list[Finding] = []
        self.raises: dict[Finding, str] = {}
        self.names: dict[str, Value] = {}
        self.attributes: dict[str, Value] = {}
        self.imported: dict[str, Value] = {}
        self.scope = ClassScope()
        self.level: Level | None = "fail"
        self.probed = _probed_names(file)
        self._discarded: set[int] = set()

    # --- findings

    def add(
        self,
        name: str,
        level: Level,
        node: ast.AST,
        title: str,
        symbol: Symbol | None = None,
        remedy: str = REMEDY,
        raises: str = "TypeError",
    ) -> None:
        """Note a finding; what may not run here at all is `unknown` at most."""
        place = "" if symbol is None else self.symbols.location(symbol)
        self.note(Finding(name, level, title, self.file.location(node), place, remedy=remedy), raises)

    def note(self, finding: Finding, raises: str) -> None:
        if self.level is None:
            return
        if self.level == "unknown":
            finding = replace(finding, level="unknown")
        self.findings.append(finding)
        self.raises[finding] = raises

    def missing(self, node: ast.AST, module: str, name: str, raises: str) -> None:
        """A name that a module lacks, and where the tree has one of that name instead."""
        places = self.symbols.index.defined_in(name)
        moved = f"; {' and '.join(places)} has it" if 0 < len(places) <= ELSEWHERE_SHOWN else ""
        owner = ModuleSymbol(module)
        level: Level = "unknown" if self.index.sets(module, name) else "fail"
        self.add("missing-name", level, node, f"{module} has no '{name}'", owner, REMEDY + moved, raises)

    # --- values

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

    # --- attributes

    def _attribute(self, node: ast.Attribute) -> Value:
        path = dotted(node)
        if path in self.names:
            return self.names[path]
        if isinstance(node.value, ast.Name) and node.value.id == "self" and "self" not in self.names:
            return self._of_self(node)
        if isinstance(node.value, ast.Call) and dotted(node.value.func) == "super":
            return None if node.value.args else self._of_super(node)
        base = self.evaluate(node.value)
        if isinstance(base, ModuleSymbol):
            return self._of_module(node, base)
        if isinstance(base, Coroutine) and node.attr not in OF_COROUTINES and not node.attr.startswith("__"):
            title = f"{base.name}() gives a coroutine, which has no '{node.attr}' before it is awaited"
            self.add("await-misfit", "fail", node, title, raises="AttributeError")
            return None
        return self._of_class(node, base)

    def _of_self(self, node: ast.Attribute) -> Value:
        name = node.attr
        if name in self.attributes or name in self.scope.own:
            return self.attributes.get(name)
        found = ((base, self.symbols.member(base, name)) for base in self.scope.bases)
        for base, member in found:
            if member is not None:
                return self._member_value(Instance(base), member)
        if self.scope.complete and isinstance(node.ctx, ast.Load) and name not in self.probed:
            self._missing_on_self(node)
        return None

    def _of_super(self, node: ast.Attribute) -> Value:
        for base in self.scope.bases if self.scope.complete else ():
            if (member := self.symbols.member(base, node.attr)) is not None:
                return self._member_value(Instance(base, exact=True), member)
        if self.scope.complete and not node.attr.startswith("__"):
            self._missing_on_self(node)
        return None

    def _missing_on_self(self, node: ast.Attribute) -> None:
        """Private attributes move between versions; told once a class, at the first use."""
        base, name = self.scope.bases[0], node.attr
        if name.startswith("__") or name in self.scope.told or self.level is None:
            return
        self.scope.told.add(name)
        certain = all(self._certainly_lacks(owner, name) for owner in self.scope.bases)
        title = f"{self.scope.name} uses self.{name}, which {base.name} does not have"
        remedy = "adapt the subclass to this vLLM, or use a vLLM it was written for"
        self.add(
            "missing-name", "fail" if certain else "unknown", node, title, base, remedy, "AttributeError"
        )

    def _of_module(self, node: ast.Attribute, base: ModuleSymbol) -> Value:
        if base.name in ("vllm", "vllm.version") and node.attr == "__version__":
            return self.version
        found = self.symbols.importable(base.name, node.attr)
        known = node.attr.startswith("__") or node.attr in self.probed
        if found is ABSENT and not known and isinstance(node.ctx, ast.Load):
            self.missing(node, base.name, node.attr, "AttributeError")
        return found

    @property
    def version(self) -> Value:
        return Constant(self.symbols.tree.version) if self.symbols.tree.version else PROBE

    def _of_class(self, node: ast.Attribute, base: Value) -> Value:
        cls = base.cls if isinstance(base, Instance) else base
        if not isinstance(cls, ClassSymbol) or node.attr.startswith("__"):
            return None
        member = self.symbols.member(cls, node.attr)
        if member is None:
            if isinstance(node.ctx, ast.Load):
                self._missing_member(node, cls, base)
            return None
        return self._member_value(base if isinstance(base, Instance) else cls, member)

    def _missing_member(self, node: ast.Attribute, cls: ClassSymbol, base: Value) -> None:
        of_instance = isinstance(base, Instance)
        names = {last_name(b) for owner in self.symbols.mro(cls)[0] for b in owner.node.bases}
        of_python = set().union(
            *(OF_EVERY_MEMBER.get(name.removeprefix("Int").removeprefix("Str"), set()) for name in names)
        )
        if node.attr in self.probed or (of_instance and node.attr in of_python) or not self._judgeable(cls):
            return
        title = f"{cls.name} has no '{node.attr}'"
        level: Level = "fail" if self._certainly_lacks(cls, node.attr) else "unknown"
        if (
            level == "fail"
            and isinstance(base, Instance)
            and not base.exact
            and (below := self._below_with(cls, node.attr))
        ):
            level, title = "unknown", f"{title}, only {below}, which derives from it"
        self.add("missing-name", level, node, title, cls, raises="AttributeError")

    def _judgeable(self, cls: ClassSymbol) -> bool:
        return self.symbols.mro(cls)[1] and not self.symbols.is_dynamic(cls) and not self.index.replaces(cls)

    def _certainly_lacks(self, cls: ClassSymbol, name: str) -> bool:
        """Whether nobody, neither the client nor vLLM, puts the attribute there at run time."""
        owners = {owner.name for owner in self.symbols.mro(cls)[0]}
        return (
            self._judgeable(cls)
            and not any(self.index.sets(owner, name) for owner in owners)
            and name not in self.symbols.index.set_from_outside
        )

    def _below_with(self, cls: ClassSymbol, name: str) -> str:
        """A class below `cls`, vLLM's or the client's, that has the attribute, or may have it."""
        for node in self.index.below(cls, self.symbols):
            members, foreign = self.index.members(node)
            strange = [base for base in foreign if not self.symbols.index.defined_in(last_name(base))]
            if name in members or strange:
                return node.name
        for below in self.symbols.below(cls):
            if self.symbols.member(below, name) is not None or not self.symbols.mro(below)[1]:
                return below.name
        return ""

    def _member_value(self, receiver: Instance | ClassSymbol, member: Member) -> Value:
        if isinstance(member, ClassSymbol):
            return member
        if isinstance(member, ValueSymbol):
            return self._value_of(member)
        if has_decorator(member.node, "property", "cached_property"):
            return self.annotated(member.node.returns, member.module)
        if isinstance(receiver, ClassSymbol) and not has_decorator(member.node, "classmethod"):
            return member  # a plain function: whoever calls it passes `self`
        return BoundMethod(receiver, member)

    def _value_of(self, member: ValueSymbol) -> Value:
        """What an attribute was declared as, or set to from a parameter that is."""
        node = member.node
        if isinstance(node, ast.AnnAssign):
            return self.annotated(node.annotation, member.module)
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and member.owner):
            return None
        for method in (n for n in member.owner.node.body if isinstance(n, ast.FunctionDef)):
            if any(inner is node for inner in ast.walk(method)):
                arguments = (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)
                for argument in (a for a in arguments if a.arg == node.value.id):
                    return self.annotated(argument.annotation, member.module)
        return None

    def annotated(self, annotation: ast.expr | None, module: str = "") -> Value:
        """What an annotation promises: of a union only where all but None is one vLLM class. `module`: of
        vLLM, in which it stands; the empty string: the client's own."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(annotation, ast.Constant):
            return NOTHING if annotation.value is None else None
        if isinstance(annotation, ast.BinOp):
            return join(self.annotated(annotation.left, module), self.annotated(annotation.right, module))
        if isinstance(annotation, ast.Subscript):
            return self._generic(annotation, module)
        if not isinstance(annotation, ast.Name | ast.Attribute):
            return None
        symbol = self.symbols.lookup(module, annotation) if module else self._named_type(annotation)
        return Instance(symbol) if isinstance(symbol, ClassSymbol) else None

    def _named_type(self, annotation: ast.expr) -> Value:
        """A class named by the client, perhaps imported for annotations only or inside of a function."""
        if dotted(annotation).split(".")[0] in self.names:
            return self.evaluate(annotation)
        names, self.names = self.names, self.imported
        level, self.level = self.level, None
        found = self.evaluate(annotation)
        self.names, self.level = names, level
        return found

    def _generic(self, annotation: ast.Subscript, module: str) -> Value:
        name = last_name(annotation)
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if name in OPTIONAL:
            return self.annotated(inner[0], module)
        if name == "Union":
            values = [self.annotated(side, module) for side in inner]
            joined = values[0]
            for value in values[1:]:
                joined = join(joined, value)
            return joined
        if name in MAPPINGS and len(inner) == 2:
            return Elements(self.annotated(inner[1], module), mapping=True)
        if name in LISTS and (len(inner) == 1 or isinstance(inner[1], ast.Constant)):
            return Elements(self.annotated(inner[0], module))
        return None

    # --- calls

    def _call(self, node: ast.Call) -> Value:
        function = self.evaluate(node.func)
        if isinstance(function, ClassSymbol):
            signature = of_constructor(self.symbols, function)
            constructor = self.symbols.method(function, "__init__") or function
            self._bind(node, signature, function.name, constructor)
            return Instance(function, exact=True)
        if isinstance(function, BoundMethod):
            return self._method_called(node, function)
        if isinstance(function, FunctionSymbol):
            title = function.qualified_name
            self._bind(node, of_function(function, bound=False), title, function)
            return self._returned(function)
        if isinstance(function, Instance):
            self._instance_called(node, function)
            return None
        return self._of_python(node)

    def _of_python(self, node: ast.Call) -> Value:
        """Calls of functions that are not vLLM's, whose result can be told all the same."""
        name, arguments = last_name(node), node.args
        if name in ("parse", "Version", "LooseVersion") and arguments:
            value = self.evaluate(arguments[0])
            return value if isinstance(value, Constant | Probe) else None
        if name == "version" and arguments:
            of = self.evaluate(arguments[0])
            return self.version if isinstance(of, Constant) and of.value in VLLM_DISTRIBUTIONS else None
        if name == "find_spec" and (module := self._vllm_module(arguments)):
            return ModuleSymbol(module) if self.symbols.tree.has_module(module) else NOTHING
        if name in ("signature", "getfullargspec", "find_spec") or (name == "getattr" and len(arguments) > 2):
            return PROBE
        if name == "hasattr":
            decided = self.decide(node)
            return PROBE if decided is None else Constant(decided)
        if name == "cast" and len(arguments) == 2:
            return self.annotated(arguments[0])
        if name == "dict" and not arguments and isinstance(node.func, ast.Name):
            keys = frozenset(k.arg for k in node.keywords if k.arg)
            return Keywords(keys, closed=all(k.arg for k in node.keywords))
        if isinstance(node.func, ast.Name) and name == "replace" and arguments:
            self._replaced(node, self.evaluate(arguments[0]))
        if name == "import_module" and (module := self._vllm_module(arguments)):
            if self.symbols.tree.has_module(module):
                return ModuleSymbol(module)
            self.missing_module(node, module)
        if isinstance(node.func, ast.Attribute) and name in LOOKS_UP:
            base = self.evaluate(node.func.value)
            return _looked_up(base, name) if isinstance(base, Elements) else None
        return None

    def _vllm_module(self, arguments: Sequence[ast.expr]) -> str:
        """The module of vLLM that the first argument spells out, or the empty string."""
        value = self.evaluate(arguments[0]) if arguments else None
        name = str(value.value) if isinstance(value, Constant) else ""
        return name if name.startswith("vllm.") else ""

    def missing_module(self, node: ast.AST, module: str) -> None:
        level: Level = "unknown" if module in self.index.modules_made else "fail"
        title = f"module {module} does not exist in this vLLM"
        self.add("missing-module", level, node, title, raises="ModuleNotFoundError")

    def _replaced(self, node: ast.Call, value: Value) -> None:
        """`dataclasses.replace(x, field=...)`."""
        signature = of_constructor(self.symbols, value.cls) if isinstance(value, Instance) else None
        if signature is None or not isinstance(value, Instance) or signature.takes_any_keyword:
            return
        for name in (k.arg for k in node.keywords if k.arg and k.arg not in signature.names):
            title = f"{value.cls.name}() takes no argument '{name}'"
            self.add("unexpected-argument", "fail" if value.exact else "unknown", node, title, value.cls)

    def _method_called(self, node: ast.Call, method: BoundMethod) -> Value:
        name = f"{method.cls.name}.{method.function.name}"
        others = self._overridden(method)
        self._bind(node, of_method(method.function), name, method.function, others)
        self._result_used(node, method)
        return self._returned(method.function, sure=not others)

    def may_differ(self, method: BoundMethod) -> bool:
        """Whether a call may meet another method than that of the declared class."""
        return bool(self._overridden(method))

    def _overridden(self, method: BoundMethod) -> list[Signature]:
        """How classes below the declared one take the same call."""
        if method.exact:
            return []
        name = method.function.name
        found = [
            m
            for below in self.symbols.below(method.cls)
            if (m := self.symbols.method(below, name)) is not None
        ]
        own = [
            FunctionSymbol("", member)
            for node in self.index.below(method.cls, self.symbols)
            if isinstance(
                member := self.index.members(node)[0].get(name), ast.FunctionDef | ast.AsyncFunctionDef
            )
        ]
        return [of_method(function) for function in (*found, *own) if function != method.function]

    def _instance_called(self, node: ast.Call, value: Instance) -> None:
        """`module(...)` runs `__call__`, and a torch module's that runs `forward`."""
        function = self.symbols.method(value.cls, "__call__") or self.symbols.method(value.cls, "forward")
        if function is not None and value.exact and not is_static(function):
            self._bind(node, of_method(function), f"{value.cls.name}.{function.name}", function)

    def _returned(self, function: FunctionSymbol, sure: bool = True) -> Value:
        """What a call gives, `sure`: of this very function."""
        returns = function.node.returns
        result = self.annotated(returns, function.module)
        if not isinstance(function.node, ast.AsyncFunctionDef):
            return result
        generates = returns is not None and last_name(returns).startswith("Async")
        if generates or not sure or _yields(function.node) or self.index.replaces(function):
            return None
        return Coroutine(result, function.qualified_name)

    def _awaited(self, node: ast.Await) -> Value:
        value = self.evaluate(node.value)
        return value.result if isinstance(value, Coroutine) else None

    def _bind(
        self,
        node: ast.Call,
        signature: Signature | None,
        name: str,
        symbol: Symbol,
        others: Sequence[Signature] = (),
    ) -> None:
        """Judge a call. `others`: signatures that it may meet instead, in classes below the declared one."""
        if signature is None or self.level is None:
            return
        spread = self._spread(node)
        open_ended = self.index.replaces(symbol) or any(not bind(node, other, spread) for other in others)
        misfits: list[Misfit] = bind(node, signature, spread)
        for misfit in misfits:
            self.add(
                misfit.id, "unknown" if open_ended else "fail", node, f"{name}() {misfit.message}", symbol
            )
        if not misfits and not others and (swapped := misplaced(node, signature)) is not None:
            self.add(swapped.id, "warn", node, f"{name}() {swapped.message}", symbol, raises="")

    def _spread(self, node: ast.Call) -> Spread:
        values = [self.evaluate(keyword.value) for keyword in node.keywords if keyword.arg is None]
        known = [value for value in values if isinstance(value, Keywords)]
        keys = frozenset().union(*(value.keys for value in known)) if known else frozenset()
        return Spread(keys, len(known) == len(values) and all(value.closed for value in known))

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
        call = f"{method.cls.name}.{method.function.name}()"
        title = f"{call} may return None and then wants {second}(); its result is discarded"
        remedy = f"call {second}() where {method.function.name}() returns None"
        self.add("discarded-result", "warn", node, title, method.function, remedy, raises="")


def _looked_up(base: Elements, name: str) -> Value:
    if name in ("get", "pop") and (base.mapping or name == "pop"):
        return base.item
    return (
        Elements(base.item, mapping=name == "copy" and base.mapping) if name in ("values", "copy") else None
    )


def _keywords_of(node: ast.Dict) -> Keywords:
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    return Keywords(frozenset(keys), closed=len(keys) == len(node.keys))


def _yields(function: ast.AsyncFunctionDef) -> bool:
    """Whether it is an asynchronous generator, which is iterated over and not awaited."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


def _probed_names(file: ClientFile) -> set[str]:
    """Names the file asks for with `hasattr` or `getattr`: it knows they may be absent."""
    calls = (
        node
        for node in file.nodes
        if isinstance(node, ast.Call) and last_name(node) in ("hasattr", "getattr") and len(node.args) > 1
    )
    return {str(call.args[1].value) for call in calls if isinstance(call.args[1], ast.Constant)}
