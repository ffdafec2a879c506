"""What a function of vLLM gives back, as far as its source shows: how many values, and whether it can be
awaited. Standard library only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from eagle3_data.compatibility.source.symbols import FunctionSymbol, has_decorator, last_name

TUPLES = {"tuple", "Tuple"}
NEVER_AWAITABLE = {"None", "int", "str", "bool", "float", "bytes", "list", "dict", "set", "tuple"}
CHANGES_RESULT = ("contextmanager", "asynccontextmanager", "property", "cached_property", "overload")


def returned_values(function: FunctionSymbol) -> int | None:
    """The number of values of the tuple that every call returns; None where it is not a tuple, or varies."""
    node = function.node
    if has_decorator(node, *CHANGES_RESULT) or any(
        isinstance(n, ast.Yield | ast.YieldFrom) for n in _own(node)
    ):
        return None
    returned = [n.value for n in _own(node) if isinstance(n, ast.Return)]
    if returned and all(isinstance(value, ast.Tuple) for value in returned):
        tuples = [value.elts for value in returned if isinstance(value, ast.Tuple)]
        starred = any(isinstance(element, ast.Starred) for elements in tuples for element in elements)
        counts = {len(elements) for elements in tuples}
        return counts.pop() if len(counts) == 1 and not starred else None
    declared = node.returns
    if (
        isinstance(declared, ast.Subscript)
        and last_name(declared) in TUPLES
        and isinstance(declared.slice, ast.Tuple)
    ):
        elements = declared.slice.elts
        endless = any(isinstance(e, ast.Constant) and e.value is ... for e in elements)
        return None if endless or any(isinstance(e, ast.Starred) for e in elements) else len(elements)
    return None


def awaited_in_vain(function: FunctionSymbol) -> bool:
    """Whether it is a plain function whose result, by its annotation, cannot be awaited."""
    node = function.node
    if isinstance(node, ast.AsyncFunctionDef) or node.decorator_list or node.returns is None:
        return False
    return ast.unparse(node.returns).split("[")[0] in NEVER_AWAITABLE


def _own(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function's body, those of functions inside it left out."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            yield child
            yield from _own(child)
