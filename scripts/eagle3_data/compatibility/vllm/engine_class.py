"""Whether the configured engine's class exists, without importing it: an engine imports vLLM. Standard
library only."""

from __future__ import annotations

import ast
import difflib
import importlib.util
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from eagle3_data.compatibility.source.symbols import dotted, statements
from eagle3_data.findings import Finding

OURS = ("eagle3_data.engines.vllm.engine:VllmEngine", "eagle3_data.engines.transformers:TransformersEngine")


def check_engine(engine: str) -> list[Finding]:
    """A finding where `engine` (`module:Class`) names no class that the engine's process could import from
    here."""
    module, _, name = engine.partition(":")
    spec = find_module(module)
    if isinstance(spec, str):
        title = f"extraction.engine is {engine}, and there is no module {spec}"
    elif not _may_define(spec, name):
        title = f"extraction.engine is {engine}, and {spec.origin or module} has no {name}"
    else:
        return []
    near = difflib.get_close_matches(engine, OURS, n=1)
    remedy = (
        f"did you mean {near[0]}?"
        if near
        else "correct it; a module outside of this workflow must be on PYTHONPATH"
    )
    return [Finding("engine-unknown", "fail", title, "extraction.engine", remedy=remedy)]


def find_module(module: str) -> ModuleSpec | str:
    """Where the module would be imported from, or the name of the first part of it that does not exist.

    For the top only `importlib.util.find_spec`: of a module inside it imports the packages above, whatever
    they in turn import.
    """
    top, *inner = module.split(".")
    # The engine's process is started with `python -m`, so it also looks into the working directory, and there
    # first.
    spec = PathFinder.find_spec(top, [str(Path.cwd())]) or _installed(top)
    name = top
    for part in inner:
        if spec is None:
            break
        name = f"{name}.{part}"
        spec = (
            PathFinder.find_spec(name, spec.submodule_search_locations)
            if spec.submodule_search_locations is not None
            else None
        )
    return spec or name


def _installed(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # an empty name, or a module that was made without a spec
        return None


def _may_define(spec: ModuleSpec, name: str) -> bool:
    """Whether the module's text gives it the name; True if the text does not show it (compiled, `import *`, a
    name made on demand)."""
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
            found |= {
                dotted(target)
                for target in (statement.targets if isinstance(statement, ast.Assign) else [statement.target])
            }
    return found
