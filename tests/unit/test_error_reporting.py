"""No code of ours reports an error by its text alone: `str` of many errors is empty, and then the report is,
too.

Allowed are the helpers of `eagle3_data.errors` (`headline`, `message_of`, `describe_exception`), `repr` and
`{error!r}`; a new error raised with words of its own, `from` the caught one or in its context (one of this
package's also `from None`, its message then names everything); and the text of this package's own errors,
which always have one.

It looks at syntax trees because no run shows the fault until the day on which an error has no text: an `ERROR
in batch 0-8: ` with nothing after the colon is what this project was started for.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sorted((ROOT / "scripts").rglob("*.py"))
SNAKEMAKE = sorted([*(ROOT / "rules").glob("*.smk"), ROOT / "Snakefile"])
WRITES_TEXT_ONLY = {
    "print",
    "str",
    "format",
    "debug",
    "info",
    "warn",
    "warning",
    "error",
    "exception",
    "critical",
    "log",
    "say",
    "write",
    "fail",
}
CLASSES = [
    node
    for path in PYTHON
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(node, ast.ClassDef)
]
OUR_ERRORS = {node.name for node in CLASSES if node.name.endswith("Error")}
CAUGHT = re.compile(r"^\s*except\b(?P<types>.*)\bas (?P<name>\w+)\s*:")


def text_only_reports(tree: ast.Module) -> list[int]:
    """Lines of except blocks where a caught error that is not our own is turned into its bare text."""
    lines = []
    for handler in (node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name):
        if handler.type is not None and _names(handler.type) <= OUR_ERRORS:
            continue
        for statement in handler.body:
            kept = {
                id(inner)
                for node in ast.walk(statement)
                if _keeps(node, handler.name)
                for inner in ast.walk(node)
            }
            lines += [
                node.lineno
                for node in ast.walk(statement)
                if id(node) not in kept and _shows_text_only(node, handler.name)
            ]
    return sorted(lines)


def _names(types: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(types) if isinstance(node, ast.Name)}


def _keeps(node: ast.AST, name: str | None) -> bool:
    """A new error with words of its own, or a branch for errors of a class that is told apart."""
    if isinstance(node, ast.Raise):
        if _is(node.cause, name):
            return True
        words = (
            n
            for n in ast.walk(node)
            if isinstance(n, ast.Constant) and isinstance(n.value, str) and n.value.strip()
        )
        whole = not any(_takes_arguments(inner, name) for inner in ast.walk(node))
        return whole and any(words) and (node.cause is None or _is_our_own(node.exc))
    told_apart = isinstance(node, ast.IfExp | ast.If) and any(
        isinstance(n, ast.Name) and n.id == "isinstance" for n in ast.walk(node.test)
    )
    return told_apart and bool(_names(node.test) & OUR_ERRORS)


def _is_our_own(error: ast.expr | None) -> bool:
    return isinstance(error, ast.Call) and isinstance(error.func, ast.Name) and error.func.id in OUR_ERRORS


def _takes_arguments(node: ast.AST, name: str | None) -> bool:
    """`error.args`: its text without its type, or nothing at all."""
    return isinstance(node, ast.Attribute) and node.attr == "args" and _is(node.value, name)


def _is(node: ast.AST | None, name: str | None) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _shows_text_only(node: ast.AST, name: str | None) -> bool:
    if _takes_arguments(node, name):
        return True
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        return any(_is(argument, name) for argument in node.exc.args)
    if isinstance(node, ast.FormattedValue):
        return _is(node.value, name) and node.conversion != ord("r")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return any(_is(value, name) for value in ast.walk(node.right)) and isinstance(node.left, ast.Constant)
    if isinstance(node, ast.Call):
        function = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        return function in WRITES_TEXT_ONLY and any(_is(argument, name) for argument in node.args)
    return False


@pytest.mark.parametrize(
    "report",
    [
        'print(f"failed: {error}")',
        "print(error)",
        'log.error("failed: %s", error)',
        'say("failed: " + str(error))',
        'x = "failed: %s" % error',
        'say("{}".format(error))',
        'raise RuntimeError(f"failed: {error}") from None',
        "raise RuntimeError(error) from None",
        "raise RuntimeError(str(error)) from None",
        "msg = error.args[0]",
        'raise InputError(f"no JSON ({error.args[0]})") from None',
        "logger.exception(error)",
        "logger.log(40, error)",
        'logger.log(40, "failed: %s", error)',
        "warnings.warn(error)",
    ],
)
def test_reports_by_text_alone_are_found(report):
    assert text_only_reports(ast.parse(f"try:\n    go()\nexcept Exception as error:\n    {report}\n")) == [4]


@pytest.mark.parametrize(
    "report",
    [
        "say(headline(error))",
        'print(f"failed: {error!r}")',
        "record(describe_exception(error))",
        'raise InputError(f"{path} cannot be read: {error}") from error',
        'raise InputError(f"{path} is no JSON ({error})") from None',
        'told = str(error) if isinstance(error, InputError) else "half a character"',
        "raise",
        "raise RuntimeError(str(number)) from None",
        'raise InputError(f"no JSON ({error.args[0]})") from error',
        "logger.exception('the engine died')",
        "logger.log(40, headline(error))",
        "number = error.errno",
        "words = self.args[0]",
        'print(f"{other}")',
    ],
)
def test_reports_that_keep_the_error_are_left_alone(report):
    assert text_only_reports(ast.parse(f"try:\n    go()\nexcept Exception as error:\n    {report}\n")) == []


@pytest.mark.parametrize("path", PYTHON, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_script_reports_an_error_by_its_text_alone(path):
    lines = text_only_reports(ast.parse(path.read_text(encoding="utf-8")))
    assert lines == [], (
        f"{path}: lines {lines} show only the error's text; use eagle3_data.errors.headline or"
        " describe_exception"
    )


def test_our_own_errors_may_show_their_text():
    assert (
        text_only_reports(ast.parse("try:\n    go()\nexcept ConfigError as error:\n    print(error)\n")) == []
    )
    assert text_only_reports(
        ast.parse("try:\n    go()\nexcept (ConfigError, OSError) as error:\n    print(error)\n")
    ) == [4]


@pytest.mark.parametrize("path", SNAKEMAKE, ids=lambda path: path.name)
def test_no_rule_reports_an_error_by_its_text_alone(path):
    """Rules are no plain Python, so their lines are searched."""
    name = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if (caught := CAUGHT.match(line)) is not None:
            ours = set(re.findall(r"\w+", caught["types"])) <= OUR_ERRORS
            name = None if ours else caught["name"]
        assert not (name and re.search(rf"\{{{name}\}}|\b(?:str|print)\({name}\)", line)), (
            f"{path}:{number} shows only the error's text"
        )


def test_there_is_something_to_look_at():
    assert len(PYTHON) > 20 and all(path.exists() for path in SNAKEMAKE)
    assert {"ConfigError", "InputError", "CompatibilityError"} <= OUR_ERRORS
