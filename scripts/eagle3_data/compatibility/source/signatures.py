"""Signatures of functions and constructors read from source, and the binding of calls to them. Standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    FunctionSymbol,
    Symbols,
    has_decorator,
    last_name,
    statements,
)

DATACLASS_DECORATORS = ("dataclass", "config", "define", "attrs")
RECORD_BASES = {"Struct", "NamedTuple"}
DEFAULT_KEYWORDS = {"default", "default_factory", "factory"}


@dataclass(frozen=True)
class Signature:
    """What may and must be passed; a bound `self` is left out."""

    positional: tuple[str, ...]
    keyword_only: tuple[str, ...]
    required: frozenset[str]
    takes_any_positional: bool = False
    takes_any_keyword: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.positional, *self.keyword_only)


@dataclass(frozen=True)
class Misfit:
    """One way in which a call does not fit: a finding id and the words for it."""

    id: str
    message: str


def is_static(function: FunctionSymbol) -> bool:
    return has_decorator(function.node, "staticmethod")


def of_function(function: FunctionSymbol, bound: bool) -> Signature:
    """The function's signature; `bound`: its first parameter is passed by Python."""
    arguments = function.node.args
    positional = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    required = set(positional[: len(positional) - len(arguments.defaults)])
    required |= {
        a.arg
        for a, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if default is None
    }
    if bound and positional:
        required.discard(positional.pop(0))
    keyword_only = tuple(a.arg for a in arguments.kwonlyargs)
    return Signature(
        tuple(positional),
        keyword_only,
        frozenset(required),
        arguments.vararg is not None,
        arguments.kwarg is not None,
    )


def of_method(function: FunctionSymbol) -> Signature:
    return of_function(function, bound=not is_static(function))


def of_constructor(symbols: Symbols, cls: ClassSymbol) -> Signature | None:
    """What `cls(...)` takes; None where that is decided outside the tree (a foreign base, `__new__`, a
    pydantic model)."""
    classes, _ = symbols.mro(cls)
    for owner in classes:
        for statement in statements(owner.node.body):
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                return of_function(FunctionSymbol(owner.module, statement, owner), bound=True)
            if isinstance(statement, ast.FunctionDef) and statement.name == "__new__":
                return None
        if _is_record(owner.node):
            return _of_fields(symbols, owner)
    return None


def _is_record(node: ast.ClassDef) -> bool:
    """Whether the constructor is generated from the annotated fields."""
    return has_decorator(node, *DATACLASS_DECORATORS) or any(
        last_name(base) in RECORD_BASES for base in node.bases
    )


def _of_fields(symbols: Symbols, cls: ClassSymbol) -> Signature:
    fields: dict[str, bool] = {}
    for owner in reversed(symbols.mro(cls)[0]):
        if _is_record(owner.node):
            fields |= dict(_own_fields(owner.node))
    fields = {name: required for name, required in fields.items() if name}
    return Signature(tuple(fields), (), frozenset(name for name, required in fields.items() if required))


def _own_fields(node: ast.ClassDef) -> Iterator[tuple[str, bool]]:
    """(name, required) of the fields that are constructor parameters."""
    for statement in statements(node.body):
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        if "ClassVar" in ast.unparse(statement.annotation):
            continue
        value = statement.value
        if not (isinstance(value, ast.Call) and last_name(value) in ("field", "Field")):
            yield statement.target.id, value is None
            continue
        keywords = {keyword.arg: keyword.value for keyword in value.keywords}
        init = keywords.get("init")
        if isinstance(init, ast.Constant) and init.value is False:
            continue
        first_is_default = bool(value.args) and not (
            isinstance(value.args[0], ast.Constant) and value.args[0].value is ...
        )
        yield statement.target.id, not first_is_default and not DEFAULT_KEYWORDS & set(keywords)


def bind(call: ast.Call, signature: Signature) -> list[Misfit]:
    """Why `call` would raise TypeError; empty where it fits, or where `*args` and `**kwargs` leave it
    open."""
    plain = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
    spread = len(plain) < len(call.args) or any(keyword.arg is None for keyword in call.keywords)
    misfits = []
    if len(plain) > len(signature.positional) and not signature.takes_any_positional:
        misfits.append(
            Misfit(
                "unexpected-argument",
                f"takes {len(signature.positional)} positional arguments, {len(plain)} are passed",
            )
        )
    given = list(signature.positional[: len(plain)])
    for name in (keyword.arg for keyword in call.keywords if keyword.arg is not None):
        if name in given:
            misfits.append(Misfit("unexpected-argument", f"gets argument '{name}' twice"))
        elif name not in signature.names and not signature.takes_any_keyword:
            misfits.append(Misfit("unexpected-argument", f"takes no argument '{name}'"))
        given.append(name)
    missing = (
        []
        if spread
        else [name for name in signature.names if name in signature.required and name not in given]
    )
    return misfits + [Misfit("missing-argument", f"needs argument '{name}'") for name in missing]
