"""Checks a client's subclasses of vLLM's classes: abstract methods, overrides, attributes of `self`,
`super().__init__`. Standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from eagle3_data.compatibility.source.client import ClientFile
from eagle3_data.compatibility.source.signatures import bind, of_constructor, of_method
from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    FunctionSymbol,
    Symbols,
    dotted,
    has_decorator,
    last_name,
    statements,
)
from eagle3_data.findings import Finding

REMEDY = "adapt the subclass to this vLLM, or use a vLLM it was written for"


def check_subclass(
    file: ClientFile, node: ast.ClassDef, bases: Sequence[ClassSymbol], symbols: Symbols
) -> list[Finding]:
    """`bases` are those of the class's bases that are vLLM's."""
    complete = len(bases) == len(node.bases) and all(symbols.mro(base)[1] for base in bases)
    findings = [
        *_abstract_left(file, node, bases, symbols),
        *_overrides(file, node, bases, symbols),
        *_super_init(file, node, bases, symbols),
    ]
    return findings + (list(_unknown_attributes(file, node, bases, symbols)) if complete else [])


def _own_methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {s.name: s for s in statements(node.body) if isinstance(s, ast.FunctionDef)}


def _find(symbols: Symbols, bases: Sequence[ClassSymbol], name: str) -> FunctionSymbol | None:
    return next((found for base in bases if (found := symbols.method(base, name)) is not None), None)


def _abstract_left(
    file: ClientFile, node: ast.ClassDef, bases: Sequence[ClassSymbol], symbols: Symbols
) -> Iterator[Finding]:
    own = _own_methods(node)
    abstract = {
        statement.name: FunctionSymbol(owner.module, statement, owner)
        for base in bases
        for owner in symbols.mro(base)[0]
        for statement in statements(owner.node.body)
        if isinstance(statement, ast.FunctionDef) and has_decorator(statement, "abstractmethod")
    }
    for name, method in abstract.items():
        nearest = _find(symbols, bases, name)
        if (
            name not in own
            and nearest is not None
            and has_decorator(nearest.node, "abstractmethod")
            and not has_decorator(node, "abstractmethod")
        ):
            title = (
                f"{node.name} does not implement the abstract {method.qualified_name}, so it cannot be made"
            )
            yield Finding(
                "abstract-not-implemented",
                "fail",
                title,
                file.location(node),
                symbols.location(method),
                remedy=REMEDY,
            )


def _overrides(
    file: ClientFile, node: ast.ClassDef, bases: Sequence[ClassSymbol], symbols: Symbols
) -> Iterator[Finding]:
    """Whether each override takes what vLLM passes to the method it replaces."""
    for name, function in _own_methods(node).items():
        base = _find(symbols, bases, name)
        if (
            base is None
            or name == "__init__"
            or has_decorator(function, "property")
            or has_decorator(base.node, "property")
        ):
            continue
        own, theirs = of_method(FunctionSymbol("", function)), of_method(base)
        room = len(theirs.positional) if own.takes_any_positional else len(own.positional)
        for position, argument in enumerate(theirs.names):
            positional = position < len(theirs.positional)
            if (positional and position < room) or argument in own.names or own.takes_any_keyword:
                continue
            level = "fail" if argument in theirs.required else "warn"
            title = (
                f"override {node.name}.{name} does not take '{argument}', which {base.qualified_name} takes"
            )
            yield Finding(
                "override-misfit",
                "fail" if level == "fail" else "warn",
                title,
                file.location(function),
                symbols.location(base),
                remedy=REMEDY,
            )
        if extra := own.required - set(theirs.names) - set(own.positional[: len(theirs.positional)]):
            title = (
                f"override {node.name}.{name} needs {', '.join(sorted(extra))}, which vLLM does not pass to"
                f" {base.qualified_name}"
            )
            yield Finding(
                "override-misfit",
                "fail",
                title,
                file.location(function),
                symbols.location(base),
                remedy=REMEDY,
            )


def _super_init(
    file: ClientFile, node: ast.ClassDef, bases: Sequence[ClassSymbol], symbols: Symbols
) -> Iterator[Finding]:
    signature = of_constructor(symbols, bases[0])
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        function = call.func
        if not (
            isinstance(function, ast.Attribute)
            and function.attr == "__init__"
            and isinstance(function.value, ast.Call)
        ):
            continue
        if last_name(function.value) == "super" and signature is not None:
            for misfit in bind(call, signature):
                place = symbols.location(symbols.method(bases[0], "__init__") or bases[0])
                yield Finding(
                    misfit.id,
                    "fail",
                    f"{bases[0].name}.__init__() {misfit.message}",
                    file.location(call),
                    place,
                    remedy=REMEDY,
                )


def _unknown_attributes(
    file: ClientFile, node: ast.ClassDef, bases: Sequence[ClassSymbol], symbols: Symbols
) -> Iterator[Finding]:
    """Attributes read from `self` that neither the subclass nor vLLM's classes define: private ones move
    between versions."""
    own = set(_own_methods(node)) | {
        n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)
    }
    for statement in statements(node.body):
        if isinstance(statement, ast.Assign | ast.AnnAssign):
            own |= {
                dotted(target)
                for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
            }
    reads = (n for n in ast.walk(node) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load))
    for read in sorted(reads, key=lambda n: n.lineno):
        of_self = dotted(read.value) == "self" or (
            isinstance(read.value, ast.Call) and last_name(read.value) == "super"
        )
        if not of_self or read.attr.startswith("__") or (dotted(read.value) == "self" and read.attr in own):
            continue
        if all(symbols.member(base, read.attr) is None for base in bases):
            own.add(read.attr)  # told once, at its first use
            title = f"{node.name} uses self.{read.attr}, which {bases[0].name} does not have"
            yield Finding(
                "missing-name", "fail", title, file.location(read), symbols.location(bases[0]), remedy=REMEDY
            )
