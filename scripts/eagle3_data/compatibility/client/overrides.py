"""Checks a client's subclasses of vLLM's classes: abstract methods and overrides. Standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from eagle3_data.compatibility.client.index import ClientIndex
from eagle3_data.compatibility.client.notes import ClassScope
from eagle3_data.compatibility.source.client import ClientFile
from eagle3_data.compatibility.source.signatures import of_method
from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    FunctionSymbol,
    Symbols,
    has_decorator,
    statements,
)
from eagle3_data.findings import Finding, Level

REMEDY = "adapt the subclass to this vLLM, or use a vLLM it was written for"
KINDS = ("property", "cached_property", "classmethod", "staticmethod")


def check_subclass(
    file: ClientFile, node: ast.ClassDef, scope: ClassScope, symbols: Symbols, index: ClientIndex
) -> list[Finding]:
    """`scope` names those of the class's bases that are vLLM's, and whether these are all."""
    return [
        *(_abstract_left(file, node, scope, symbols, index) if scope.complete else ()),
        *_overrides(file, node, scope.bases, symbols),
    ]


def _own_methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    return {s.name: s for s in statements(node.body) if isinstance(s, ast.FunctionDef | ast.AsyncFunctionDef)}


def _find(symbols: Symbols, bases: Sequence[ClassSymbol], name: str) -> FunctionSymbol | None:
    return next((found for base in bases if (found := symbols.method(base, name)) is not None), None)


def _abstract_left(
    file: ClientFile, node: ast.ClassDef, scope: ClassScope, symbols: Symbols, index: ClientIndex
) -> Iterator[Finding]:
    """Of a class that the client makes, not of one that it only derives others from."""
    if index.has_subclass(node) or any(
        has_decorator(method, "abstractmethod") for method in _own_methods(node).values()
    ):
        return
    names = {
        statement.name: FunctionSymbol(owner.module, statement, owner)
        for base in scope.bases
        for owner in symbols.mro(base)[0]
        for statement in statements(owner.node.body)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef)
        and has_decorator(statement, "abstractmethod")
    }
    for name, method in names.items():
        nearest = [member for base in scope.bases if (member := symbols.member(base, name)) is not None]
        if name in scope.own or not all(_is_abstract(member) for member in nearest):
            continue
        title = f"{node.name} does not implement the abstract {method.qualified_name}, so it cannot be made"
        place = symbols.location(method)
        yield Finding("abstract-not-implemented", "fail", title, file.location(node), place, remedy=REMEDY)


def _is_abstract(member: object) -> bool:
    return isinstance(member, FunctionSymbol) and has_decorator(member.node, "abstractmethod")


def _overrides(
    file: ClientFile, node: ast.ClassDef, bases: Sequence[ClassSymbol], symbols: Symbols
) -> Iterator[Finding]:
    """Whether each override takes what vLLM passes to the method it replaces."""
    for name, function in _own_methods(node).items():
        base = _find(symbols, bases, name)
        if (
            base is None
            or name == "__init__"
            or any(
                has_decorator(function, kind) != has_decorator(base.node, kind)
                or ("property" in kind and has_decorator(function, kind))
                for kind in KINDS
            )
        ):
            continue
        own, theirs = of_method(FunctionSymbol("", function)), of_method(base)
        certain: Level = "fail" if _calls(symbols, name) else "unknown"
        place = file.location(function), symbols.location(base)
        room = len(theirs.positional) if own.takes_any_positional else len(own.positional)
        for position, argument in enumerate(theirs.names):
            positional = position < len(theirs.positional)
            if (positional and position < room) or argument in own.names or own.takes_any_keyword:
                continue
            level: Level = certain if argument in theirs.required else "warn"
            title = (
                f"override {node.name}.{name} does not take '{argument}', which {base.qualified_name} takes"
            )
            yield Finding("override-misfit", level, title, *place, remedy=REMEDY)
        extra = own.required - set(theirs.names) - set(own.positional[: len(theirs.positional)])
        if extra and not theirs.takes_any_positional:
            title = (
                f"override {node.name}.{name} needs {', '.join(sorted(extra))}, which vLLM does not pass to"
                f" {base.qualified_name}"
            )
            yield Finding("override-misfit", certain, title, *place, remedy=REMEDY)


def _calls(symbols: Symbols, name: str) -> bool:
    """Whether vLLM calls a method of that name explicitly; `forward` runs through torch, with whatever
    the model's runner passes."""
    return name in symbols.index.called_methods and name != "forward"
