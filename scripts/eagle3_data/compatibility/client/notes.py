"""Findings about one file of a client, and what all who look at it share. Standard library only."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

from eagle3_data.compatibility.client.index import ClientIndex
from eagle3_data.compatibility.client.values import (
    PROBE,
    Constant,
    Value,
)
from eagle3_data.compatibility.source.client import ClientFile
from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    ModuleSymbol,
    Symbol,
    Symbols,
    last_name,
)
from eagle3_data.findings import Finding, Level

REMEDY = "use a client written for this vLLM, or a vLLM the client was written for (`matrix` shows pairs)"

ELSEWHERE_SHOWN = 2


@dataclass(frozen=True)
class ClassScope:
    """The client's class whose methods are looked at. `bases` are its vLLM classes, `own` what it and the
    client's other classes around it define; `complete`: there is no base that is neither."""

    name: str = ""
    bases: tuple[ClassSymbol, ...] = ()
    own: frozenset[str] = frozenset()
    complete: bool = False
    reported: set[str] = field(default_factory=set)


class Notes:
    """What is known while one file is looked at. `names` are what dotted names (`x`, `self.runner`) stand for
    now; `level` is how sure it is that what is looked at runs with this vLLM, None where it does not."""

    def __init__(self, file: ClientFile, symbols: Symbols, index: ClientIndex) -> None:
        self.file = file
        self.symbols = symbols
        self.index = index
        self.findings: list[Finding] = []
        self.raises: dict[Finding, str] = {}
        self.names: dict[str, Value] = {}
        self.attributes: dict[str, Value] = {}
        self.imported: dict[str, Value] = {}
        self.scope = ClassScope()
        self.level: Level | None = "fail"
        self.probed = _probed_names(file)
        self._discarded: set[int] = set()

    def add(
        self,
        name: str,
        level: Level,
        node: ast.AST,
        title: str,
        symbol: Symbol | None = None,
        remedy: str = REMEDY,
        raises: str = "TypeError",
    ) -> None:
        """Note a finding; what may not run here at all is `unknown` at most."""
        place = "" if symbol is None else self.symbols.location(symbol)
        self.note(Finding(name, level, title, self.file.location(node), place, remedy=remedy), raises)

    def note(self, finding: Finding, raises: str) -> None:
        if self.level is None:
            return
        if self.level == "unknown":
            finding = replace(finding, level="unknown")
        self.findings.append(finding)
        self.raises[finding] = raises

    def missing(self, node: ast.AST, module: str, name: str, raises: str) -> None:
        """A name that a module lacks, and where the tree has one of that name instead."""
        places = self.symbols.index.defined_in(name)
        moved = f"; {' and '.join(places)} has it" if 0 < len(places) <= ELSEWHERE_SHOWN else ""
        owner = ModuleSymbol(module)
        level: Level = "unknown" if self.index.sets(module, name) else "fail"
        self.add("missing-name", level, node, f"{module} has no '{name}'", owner, REMEDY + moved, raises)

    def missing_module(self, node: ast.AST, module: str) -> None:
        level: Level = "unknown" if module in self.index.modules_made else "fail"
        title = f"module {module} does not exist in this vLLM"
        self.add("missing-module", level, node, title, raises="ModuleNotFoundError")

    @property
    def version(self) -> Value:
        return Constant(self.symbols.tree.version) if self.symbols.tree.version else PROBE

    def evaluate(self, node: ast.expr | None) -> Value:
        """What an expression stands for, None where the trail is lost; findings are noted on the way."""
        raise NotImplementedError

    def decide(self, test: ast.expr) -> bool | None:
        """How a test comes out with this vLLM, where that follows from its source and version."""
        raise NotImplementedError


def _probed_names(file: ClientFile) -> set[str]:
    """Names the file asks for with `hasattr` or `getattr`: it knows they may be absent."""
    calls = (
        node
        for node in file.nodes
        if isinstance(node, ast.Call) and last_name(node) in ("hasattr", "getattr") and len(node.args) > 1
    )
    return {str(call.args[1].value) for call in calls if isinstance(call.args[1], ast.Constant)}
