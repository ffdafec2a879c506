"""A client's Python files: code that imports vLLM, from any directory or wheel. Standard library only."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle3_data.compatibility.source.source_tree import DirectoryFiles, Files, SourceTree, ZipFiles
from eagle3_data.errors import InputError


@dataclass(frozen=True)
class ClientFile:
    """One file that concerns vLLM; `path` is relative to the client's root."""

    path: str
    source: str

    @cached_property
    def _parsed(self) -> ast.Module | SyntaxError | ValueError:
        try:
            return ast.parse(self.source)
        except (SyntaxError, ValueError) as error:  # ValueError: a NUL in the text
            return error

    @property
    def tree(self) -> ast.Module:
        """The syntax tree; empty if this interpreter's Python cannot parse it."""
        return self._parsed if isinstance(self._parsed, ast.Module) else ast.Module([], [])

    @property
    def syntax_error(self) -> SyntaxError | ValueError | None:
        """Why the file cannot be parsed, if so: nothing in it is judged then."""
        return None if isinstance(self._parsed, ast.Module) else self._parsed

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Every node of the file."""
        return tuple(ast.walk(self.tree))

    def location(self, node: ast.AST) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}"

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """The functions defined at the file's top level."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def strings(self) -> frozenset[str]:
        """Every string constant that is not a docstring: method names, configuration keys."""
        documentation = {id(node.value) for node in self.nodes if isinstance(node, ast.Expr)}
        constants = (
            node for node in self.nodes if isinstance(node, ast.Constant) and id(node) not in documentation
        )
        return frozenset(node.value for node in constants if isinstance(node.value, str))


@dataclass(frozen=True)
class Client:
    """`requires` are the requirements it declares, of any package, those of extras included: they are there
    to be used with it."""

    label: str
    files: tuple[ClientFile, ...]
    requires: tuple[str, ...] = ()

    @property
    def strings(self) -> frozenset[str]:
        return frozenset().union(*(file.strings for file in self.files)) if self.files else frozenset()

    @property
    def uses_extraction_method(self) -> bool:
        """Whether it uses vLLM's own `extract_hidden_states`, by its method or through its connector's
        answer."""
        return bool(self.strings & {"extract_hidden_states", "hidden_states_path"}) or any(
            "HiddenStatesConnector" in file.source for file in self.files
        )


def _concerning_vllm(files: Files, below: str) -> Iterator[ClientFile]:
    """Files that import vLLM or speak its server's protocol."""
    for path in files.python_files(below):
        source = files.read(path)
        if "vllm" in source or "hidden_states_path" in source:
            yield ClientFile(path, source)


def _declared(files: Files) -> list[str]:
    """Requirements of a wheel's metadata or a source tree's pyproject.toml; none of a directory of many
    distributions."""
    metadata = files.all_metadata()
    if len(metadata) == 1:
        return HeaderParser().parsestr(metadata[0]).get_all("Requires-Dist") or []
    if metadata or not files.exists("pyproject.toml"):
        return []
    try:
        project: Any = tomllib.loads(files.read("pyproject.toml")).get("project", {})
        return [
            *project.get("dependencies", ()),
            *(line for extra in project.get("optional-dependencies", {}).values() for line in extra),
        ]
    except (tomllib.TOMLDecodeError, AttributeError, TypeError):
        return []


def open_client(path: str | Path) -> Client:
    """The client at `path`, a directory of Python files or a wheel. Raises InputError where no file of it
    mentions vLLM."""
    path = Path(path)
    if path.is_file() and path.suffix == ".py":
        return Client(path.name, (ClientFile(path.name, path.read_text(encoding="utf-8", errors="replace")),))
    if not path.exists():
        raise InputError(
            f"{path} does not exist; --client wants a directory of Python files, a wheel, or NAME==VERSION"
        )
    files: Files = ZipFiles(path) if path.is_file() else DirectoryFiles(path)
    client = Client(path.name, tuple(_concerning_vllm(files, "")), tuple(_declared(files)))
    if not client.files:
        raise InputError(
            f"no Python file below {path} mentions vllm; --client wants the code that calls vLLM"
        )
    return client


def client_of_tree(tree: SourceTree) -> Client:
    """An installed package as a client; it may have no file that mentions vLLM."""
    return Client(tree.package, tuple(_concerning_vllm(tree.files, tree.package)))
