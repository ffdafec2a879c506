"""Calls of vLLM that a client makes, and whether they fit. Standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from eagle3_data.compatibility.client.attributes import Attributes
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
)
from eagle3_data.compatibility.client.versions import VLLM_DISTRIBUTIONS
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
    ClassSymbol,
    FunctionSymbol,
    ModuleSymbol,
    Symbol,
    last_name,
)

SECOND_PHASE = {"execute_model": "sample_tokens"}
"""Calls whose result may be None until a second call is made: discarding it loses the protocol's second
half."""

LOOKS_UP = {"values", "get", "copy", "pop"}


class Calls(Attributes):
    """Calls as values."""

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
        """Calls of functions that are not vLLM's, whose result can be inferred."""
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


def _yields(function: ast.AsyncFunctionDef) -> bool:
    """Whether it is an asynchronous generator, which is iterated over and not awaited."""
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))
