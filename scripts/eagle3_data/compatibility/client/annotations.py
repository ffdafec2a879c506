"""What annotations promise, the client's and vLLM's. Standard library only."""

from __future__ import annotations

import ast

from eagle3_data.compatibility.client.notes import Notes
from eagle3_data.compatibility.client.values import (
    NOTHING,
    Elements,
    Instance,
    Value,
    join,
)
from eagle3_data.compatibility.source.symbols import (
    ClassSymbol,
    dotted,
    last_name,
)

LISTS = {"list", "List", "Sequence", "Iterable", "Iterator", "set", "frozenset", "deque", "tuple", "Tuple"}

MAPPINGS = {"dict", "Dict", "Mapping", "MutableMapping", "defaultdict", "OrderedDict"}

OPTIONAL = {"Optional", "Annotated", "Final", "ClassVar"}


class Types(Notes):
    """Annotations as values."""

    def annotated(self, annotation: ast.expr | None, module: str = "") -> Value:
        """What an annotation promises: of a union only where all but None is one vLLM class. `module`: of
        vLLM, in which it stands; the empty string: the client's own."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                return None
        if isinstance(annotation, ast.Constant):
            return NOTHING if annotation.value is None else None
        if isinstance(annotation, ast.BinOp):
            return join(self.annotated(annotation.left, module), self.annotated(annotation.right, module))
        if isinstance(annotation, ast.Subscript):
            return self._generic(annotation, module)
        if not isinstance(annotation, ast.Name | ast.Attribute):
            return None
        symbol = self.symbols.lookup(module, annotation) if module else self._named_type(annotation)
        return Instance(symbol) if isinstance(symbol, ClassSymbol) else None

    def _named_type(self, annotation: ast.expr) -> Value:
        """A class named by the client, perhaps imported for annotations only or inside of a function."""
        if dotted(annotation).split(".")[0] in self.names:
            return self.evaluate(annotation)
        names, self.names = self.names, self.imported
        level, self.level = self.level, None
        found = self.evaluate(annotation)
        self.names, self.level = names, level
        return found

    def _generic(self, annotation: ast.Subscript, module: str) -> Value:
        name = last_name(annotation)
        inner = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if name in OPTIONAL:
            return self.annotated(inner[0], module)
        if name == "Union":
            values = [self.annotated(side, module) for side in inner]
            joined = values[0]
            for value in values[1:]:
                joined = join(joined, value)
            return joined
        if name in MAPPINGS and len(inner) == 2:
            return Elements(self.annotated(inner[1], module), mapping=True)
        if name in LISTS and (len(inner) == 1 or isinstance(inner[1], ast.Constant)):
            return Elements(self.annotated(inner[0], module))
        return None
