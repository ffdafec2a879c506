"""Signatures of functions and constructors read from source, and the binding of calls to them. Standard
library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    FunctionSymbol,
    Symbols,
    dotted,
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
    classes, complete = symbols.mro(cls)
    inherits_fields = any(last_name(base) == "Struct" for owner in classes for base in owner.node.bases)
    for owner in classes:
        for statement in statements(owner.node.body):
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                function = FunctionSymbol(owner.module, statement, owner)
                return with_forwarded(symbols, function, of_function(function, bound=True))
            if isinstance(statement, ast.FunctionDef) and statement.name == "__new__":
                return None
        if inherits_fields or _is_record(owner.node):
            return _of_fields(symbols, owner, inherits_fields) if complete else None
    return None


def with_forwarded(
    symbols: Symbols, function: FunctionSymbol, signature: Signature, depth: int = 0
) -> Signature:
    """The signature, its `**kwargs` replaced by what the one constructor that they are handed on to takes, as
    `LLM(...)` hands what it does not know to EngineArgs."""
    kwarg = function.node.args.kwarg
    if kwarg is None or depth > 1:
        return signature
    calls = [
        call
        for call in ast.walk(function.node)
        if isinstance(call, ast.Call)
        and any(k.arg is None and dotted(k.value) == kwarg.arg for k in call.keywords)
    ]
    target = symbols.lookup(function.module, calls[0].func) if len(calls) == 1 else None
    inner = (
        of_constructor(symbols, target)
        if isinstance(target, ClassSymbol) and target != function.owner
        else None
    )
    if inner is None or inner.takes_any_keyword:
        return signature
    own = {
        node.value
        for node in ast.walk(function.node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
    }  # keys that the function itself takes out of its keywords
    more = tuple(name for name in (*inner.names, *sorted(own)) if name not in signature.names)
    return replace(signature, keyword_only=(*signature.keyword_only, *more), takes_any_keyword=False)


def _is_record(node: ast.ClassDef) -> bool:
    """Whether the constructor is generated from the annotated fields."""
    return has_decorator(node, *DATACLASS_DECORATORS) or any(
        last_name(base) in RECORD_BASES for base in node.bases
    )


def _of_fields(symbols: Symbols, cls: ClassSymbol, all_bases: bool) -> Signature:
    """`all_bases`: every base's fields count (msgspec's Struct), not only those of decorated classes."""
    fields: dict[str, bool] = {}
    keyword_only: set[str] = set()
    for owner in reversed(symbols.mro(cls)[0]):
        if all_bases or _is_record(owner.node):
            own = dict(_own_fields(owner.node))
            fields |= own
            keyword_only |= set(own) if _keywords_only(owner.node) else set()
    required = frozenset(name for name, needed in fields.items() if needed)
    positional = tuple(name for name in fields if name not in keyword_only)
    return Signature(positional, tuple(name for name in fields if name in keyword_only), required)


def _keywords_only(node: ast.ClassDef) -> bool:
    decorators = [d for d in node.decorator_list if isinstance(d, ast.Call)]
    keywords = [*node.keywords, *(k for d in decorators for k in d.keywords)]
    return any(
        k.arg == "kw_only" and isinstance(k.value, ast.Constant) and k.value.value is True for k in keywords
    )


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


@dataclass(frozen=True)
class Spread:
    """What `**name` adds to a call: keys known to be passed, and whether they are all."""

    keys: frozenset[str] = frozenset()
    closed: bool = False


def bind(call: ast.Call, signature: Signature, spread: Spread | None = None) -> list[Misfit]:
    """Why `call` would raise TypeError; empty where it fits, or where `*args` and `**kwargs` leave it open.

    `spread`: what is known of the call's `**` arguments.
    """
    plain = [argument for argument in call.args if not isinstance(argument, ast.Starred)]
    starred = len(plain) < len(call.args)
    spread = spread or Spread(closed=all(keyword.arg is not None for keyword in call.keywords))
    misfits = []
    if len(plain) > len(signature.positional) and not signature.takes_any_positional:
        misfits.append(
            Misfit(
                "unexpected-argument",
                f"takes {_arguments(len(signature.positional))}, {len(plain)} are passed",
            )
        )
    given = list(signature.positional[: len(plain)])
    written = [keyword.arg for keyword in call.keywords if keyword.arg is not None]
    for name in (*written, *sorted(spread.keys)):
        if name in given and not starred:
            misfits.append(Misfit("unexpected-argument", f"gets argument '{name}' twice"))
        elif name not in signature.names and not signature.takes_any_keyword:
            misfits.append(Misfit("unexpected-argument", f"takes no argument '{name}'"))
        given.append(name)
    if starred or not spread.closed:
        return misfits
    missing = [name for name in signature.names if name in signature.required and name not in given]
    return misfits + [Misfit("missing-argument", f"needs argument '{name}'") for name in missing]


def _arguments(count: int) -> str:
    return f"{count} positional argument{'s' * (count != 1)}"


def misplaced(call: ast.Call, signature: Signature) -> Misfit | None:
    """A positional argument that is named like another parameter, which the call leaves to a third: the order
    may have changed."""
    names = [dotted(argument).split(".")[-1].lstrip("_") for argument in call.args]
    for position, (name, parameter) in enumerate(zip(names, signature.positional, strict=False)):
        if name == parameter or name not in signature.positional or parameter not in names:
            continue
        if position < len(names) and signature.positional.index(name) != position:
            return Misfit("argument-order", f"takes '{parameter}' where '{name}' is passed")
    return None
