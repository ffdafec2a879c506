"""What can only be said of a whole source tree: where a name is defined, which classes derive from another,
which attributes are set from outside of a class. Read with regular expressions once, for parsing some
thousand files takes ten times as long. Standard library only."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3_data.compatibility.source.source_tree import SourceTree

CLASS = re.compile(r"^[ \t]*class (?P<name>\w+)\((?P<bases>[^)]*)\)", re.MULTILINE)
TOP_LEVEL = re.compile(
    r"^(?:(?:class|def|async def) (?P<defined>\w+)|(?P<assigned>[A-Za-z]\w*)\s*(?::[^=\n]+)?=[^=])",
    re.MULTILINE,
)
SET_ON_OTHER = re.compile(
    r"^[ \t]*(?!(?:self|cls)\.\w+[ :])[^\s#=][^\n#=]*?\.(\w+)(?:: [^=\n]+)? = "
    r"|setattr\([^,()\n]+, [\"'](\w+)[\"']",
    re.MULTILINE,
)
CALLED = re.compile(r"\.(\w+)\(")


class TreeIndex:
    """Facts of one tree, each read from its text when first asked for."""

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree

    @cached_property
    def texts(self) -> dict[str, str]:
        """The text of every module by its name."""
        return {
            path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): self.tree.files.read(path)
            for path in self.tree.files.python_files(self.tree.package)
        }

    @cached_property
    def _definitions(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for module, text in self.texts.items():
            for match in TOP_LEVEL.finditer(text):
                found[match["defined"] or match["assigned"]].append(module)
        return found

    def defined_in(self, name: str) -> list[str]:
        """Modules that define the name at their top level."""
        return list(dict.fromkeys(self._definitions.get(name, ())))

    @cached_property
    def _derived(self) -> dict[str, set[tuple[str, str]]]:
        """For each class name, (module, name) of the classes that name it among their bases."""
        found: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for module, text in self.texts.items():
            for match in CLASS.finditer(text):
                for base in re.findall(r"[\w.]+", match["bases"]):
                    found[base.split(".")[-1]].add((module, match["name"]))
        return found

    def derived(self, name: str) -> Iterator[tuple[str, str]]:
        """(module, name) of every class below the one of that name."""
        queue, seen = [name], {name}
        while queue:
            for module, below in sorted(self._derived.get(queue.pop(), ())):
                if below not in seen:
                    seen.add(below)
                    queue.append(below)
                yield module, below

    @cached_property
    def set_from_outside(self) -> frozenset[str]:
        """Attributes that some code sets on an object other than its own `self`."""
        return frozenset(
            match[1] or match[2] for text in self.texts.values() for match in SET_ON_OTHER.finditer(text)
        )

    @cached_property
    def called_methods(self) -> frozenset[str]:
        """Names that are called as methods anywhere."""
        return frozenset(match[1] for text in self.texts.values() for match in CALLED.finditer(text))
