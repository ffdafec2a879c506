"""How a client asks what this vLLM can do, and which exceptions it is prepared for. Standard library and
packaging only."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Sequence

from packaging.version import InvalidVersion, Version

from eagle3_data.compatibility.source.symbols import dotted, last_name

ASKS = {"hasattr", "getattr", "signature", "getfullargspec", "find_spec", "parse", "Version", "LooseVersion"}
SPEAKS_OF_VERSIONS = re.compile(
    r"version|legacy|compat|(^|_)(has|have|supports?)_|_(ge|gt|le|lt)_?\d|v\d+_\d+", re.IGNORECASE
)
VERSION = re.compile(r"^v?\d+\.\d+(\.\d+)?([.a-z+-]\w*)*$")
COMPARISONS: dict[type[ast.cmpop], Callable[[Version, Version], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
EVERYTHING = {"Exception", "BaseException"}
CAUGHT_BY = {
    "ImportError": {"ImportError", *EVERYTHING},
    "ModuleNotFoundError": {"ModuleNotFoundError", "ImportError", *EVERYTHING},
    "AttributeError": {"AttributeError", *EVERYTHING},
    "TypeError": {"TypeError", *EVERYTHING},
    "ValueError": {"ValueError", *EVERYTHING},
}
"""For each exception that a finding predicts, the types that catch it."""
ENDS_THE_PROGRAM = {"exit", "_exit", "abort"}


def speaks_of_versions(test: ast.expr) -> bool:
    """Whether a test that could not be decided asks about the version or the abilities of something."""
    for node in ast.walk(test):
        if isinstance(node, ast.Call) and last_name(node) in ASKS:
            return True
        if isinstance(node, ast.Name | ast.Attribute) and SPEAKS_OF_VERSIONS.search(last_name(node)):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and VERSION.match(node.value):
            return True
    return False


def calls_with(body: Sequence[ast.stmt], names: set[str]) -> Iterator[tuple[str, bool, ast.Call]]:
    """Of each call its function as written, and whether one of `names` is passed."""
    for node in (inner for statement in body for inner in ast.walk(statement)):
        if isinstance(node, ast.Call):
            passed = (*node.args, *(keyword.value for keyword in node.keywords))
            yield ast.unparse(node.func), any(dotted(value) in names for value in passed), node


def compare_versions(left: str, comparison: ast.cmpop, right: str) -> bool | None:
    """The comparison's outcome, None if one side is not a version or the comparison is of another kind."""
    try:
        compare = COMPARISONS.get(type(comparison))
        return compare(Version(left), Version(right)) if compare else None
    except InvalidVersion:
        return None


def catches(handler: ast.ExceptHandler, raised: str) -> bool:
    if handler.type is None:
        return True
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(last_name(kind) in CAUGHT_BY.get(raised, EVERYTHING) for kind in types)


def passes_on(handler: ast.ExceptHandler) -> bool:
    """Whether the handler itself ends in an exception, or ends the program: it prepares for nothing."""
    return _ends(handler.body, (ast.Raise,))


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether what stands after the body is not reached from it."""
    return _ends(body, (ast.Return, ast.Raise, ast.Continue, ast.Break))


def _ends(body: Sequence[ast.stmt], kinds: tuple[type[ast.stmt], ...]) -> bool:
    if not body:
        return False
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return last_name(last.value) in ENDS_THE_PROGRAM
    if isinstance(last, ast.If):
        return bool(last.orelse) and _ends(last.body, kinds) and _ends(last.orelse, kinds)
    return isinstance(last, kinds)


def narrowings(test: ast.expr, holds: bool) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(object, class or tuple of classes) that the object must be an instance of where `test` came out as
    `holds`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from narrowings(test.operand, not holds)
    elif isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if holds else ast.Or):
        for value in test.values:
            yield from narrowings(value, holds)
    elif holds and isinstance(test, ast.Call) and dotted(test.func) == "isinstance" and len(test.args) == 2:
        yield test.args[0], test.args[1]
    elif holds and isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is | ast.Eq):
        asked = test.left
        if isinstance(asked, ast.Call) and dotted(asked.func) == "type" and asked.args:
            yield asked.args[0], test.comparators[0]
