"""Whether the configured engine's class exists, told without importing it: an engine imports vLLM. Standard library only."""

from __future__ import annotations

import ast
import difflib
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from eagle3_data.compatibility.findings import Finding
from eagle3_data.compatibility.symbols import dotted, statements

OURS = ("eagle3_data.engines.vllm.engine:VllmEngine", "eagle3_data.engines.transformers:TransformersEngine")


def check_engine(engine: str) -> list[Finding]:
    """A finding where `engine` (`module:Class`) names no class that the engine's process could import from here."""
    module, _, name = engine.partition(":")
    spec = find_module(module)
    if isinstance(spec, str):
        title = f"extraction.engine is {engine}, and there is no module {spec}"
    elif not _may_define(spec, name):
        title = f"extraction.engine is {engine}, and {spec.origin} has no {name}"
    else:
        return []
    near = difflib.get_close_matches(engine, OURS, n=1)
    remedy = f"did you mean {near[0]}?" if near else "correct it; a module outside of this workflow must be on PYTHONPATH"
    return [Finding("engine-unknown", "fail", title, "extraction.engine", remedy=remedy)]


def find_module(module: str) -> ModuleSpec | str:
    """Where the module would be imported from, or the name of the first part of it that does not exist.

    Not `importlib.util.find_spec`, which imports the packages above a module, whatever they in turn import.
    """
    parts = module.split(".")
    spec: ModuleSpec | None = None
    for depth in range(1, len(parts) + 1):
        name = ".".join(parts[:depth])
        if spec is not None and spec.submodule_search_locations is None:
            return name
        spec = PathFinder.find_spec(name, spec.submodule_search_locations if spec else None)
        if spec is None:
            return name
    return spec or module


def _may_define(spec: ModuleSpec, name: str) -> bool:
    """Whether the module's text gives it the name; True where the text does not tell (compiled, `import *`, a name made on demand)."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return spec.origin is not None
    try:
        tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8", errors="replace"))
    except (OSError, SyntaxError, ValueError):
        return True
    return bool({name, "*", "__getattr__"} & _names(tree))


def _names(tree: ast.Module) -> set[str]:
    found: set[str] = set()
    for statement in statements(tree.body):
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found.add(statement.name)
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in statement.names}
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            found |= {dotted(target) for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])}
    return found
