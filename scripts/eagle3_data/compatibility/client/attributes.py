"""Attributes that a client reads, and whether they are there. Standard library only."""

from __future__ import annotations

import ast

from eagle3_data.compatibility.client.annotations import Types
from eagle3_data.compatibility.client.values import (
    BoundMethod,
    Coroutine,
    Instance,
    Value,
)
from eagle3_data.compatibility.source.symbols import (
    ABSENT,
    ClassSymbol,
    Member,
    ModuleSymbol,
    ValueSymbol,
    dotted,
    has_decorator,
    last_name,
)
from eagle3_data.findings import Level

OF_EVERY_MEMBER = {
    "Enum": {"name", "value"},
    "NamedTuple": {"_asdict", "_replace", "_fields", "count", "index"},
    "TypedDict": {"get", "keys", "values", "items", "update", "pop", "setdefault", "copy"},
}
"""What instances of such classes have from Python."""

OF_COROUTINES = {"send", "throw", "close"}


class Attributes(Types):
    """Attributes as values."""

    def _attribute(self, node: ast.Attribute) -> Value:
        path = dotted(node)
        if path in self.names:
            return self.names[path]
        if isinstance(node.value, ast.Name) and node.value.id == "self" and "self" not in self.names:
            return self._of_self(node)
        if isinstance(node.value, ast.Call) and dotted(node.value.func) == "super":
            return None if node.value.args else self._of_super(node)
        base = self.evaluate(node.value)
        if isinstance(base, ModuleSymbol):
            return self._of_module(node, base)
        if isinstance(base, Coroutine) and node.attr not in OF_COROUTINES and not node.attr.startswith("__"):
            title = f"{base.name}() gives a coroutine, which has no '{node.attr}' before it is awaited"
            self.add("await-misfit", "fail", node, title, raises="AttributeError")
            return None
        return self._of_class(node, base)

    def _of_self(self, node: ast.Attribute) -> Value:
        name = node.attr
        if name in self.attributes or name in self.scope.own:
            return self.attributes.get(name)
        found = ((base, self.symbols.member(base, name)) for base in self.scope.bases)
        for base, member in found:
            if member is not None:
                return self._member_value(Instance(base), member)
        if self.scope.complete and isinstance(node.ctx, ast.Load) and name not in self.probed:
            self._missing_on_self(node)
        return None

    def _of_super(self, node: ast.Attribute) -> Value:
        for base in self.scope.bases if self.scope.complete else ():
            if (member := self.symbols.member(base, node.attr)) is not None:
                return self._member_value(Instance(base, exact=True), member)
        if self.scope.complete and not node.attr.startswith("__"):
            self._missing_on_self(node)
        return None

    def _missing_on_self(self, node: ast.Attribute) -> None:
        """Private attributes move between versions; reported once per class, at the first use."""
        base, name = self.scope.bases[0], node.attr
        if name.startswith("__") or name in self.scope.reported or self.level is None:
            return
        self.scope.reported.add(name)
        certain = all(self._certainly_lacks(owner, name) for owner in self.scope.bases)
        title = f"{self.scope.name} uses self.{name}, which {base.name} does not have"
        remedy = "adapt the subclass to this vLLM, or use a vLLM it was written for"
        self.add(
            "missing-name", "fail" if certain else "unknown", node, title, base, remedy, "AttributeError"
        )

    def _of_module(self, node: ast.Attribute, base: ModuleSymbol) -> Value:
        if base.name in ("vllm", "vllm.version") and node.attr == "__version__":
            return self.version
        found = self.symbols.importable(base.name, node.attr)
        known = node.attr.startswith("__") or node.attr in self.probed
        if found is ABSENT and not known and isinstance(node.ctx, ast.Load):
            self.missing(node, base.name, node.attr, "AttributeError")
        return found

    def _of_class(self, node: ast.Attribute, base: Value) -> Value:
        cls = base.cls if isinstance(base, Instance) else base
        if not isinstance(cls, ClassSymbol) or node.attr.startswith("__"):
            return None
        member = self.symbols.member(cls, node.attr)
        if member is None:
            if isinstance(node.ctx, ast.Load):
                self._missing_member(node, cls, base)
            return None
        return self._member_value(base if isinstance(base, Instance) else cls, member)

    def _missing_member(self, node: ast.Attribute, cls: ClassSymbol, base: Value) -> None:
        of_instance = isinstance(base, Instance)
        names = {last_name(b) for owner in self.symbols.mro(cls)[0] for b in owner.node.bases}
        of_python = set().union(
            *(OF_EVERY_MEMBER.get(name.removeprefix("Int").removeprefix("Str"), set()) for name in names)
        )
        if node.attr in self.probed or (of_instance and node.attr in of_python) or not self._judgeable(cls):
            return
        title = f"{cls.name} has no '{node.attr}'"
        level: Level = "fail" if self._certainly_lacks(cls, node.attr) else "unknown"
        if (
            level == "fail"
            and isinstance(base, Instance)
            and not base.exact
            and (below := self._below_with(cls, node.attr))
        ):
            level, title = "unknown", f"{title}, only {below}, which derives from it"
        self.add("missing-name", level, node, title, cls, raises="AttributeError")

    def _judgeable(self, cls: ClassSymbol) -> bool:
        return self.symbols.mro(cls)[1] and not self.symbols.is_dynamic(cls) and not self.index.replaces(cls)

    def _certainly_lacks(self, cls: ClassSymbol, name: str) -> bool:
        """Whether nobody, neither the client nor vLLM, puts the attribute there at run time."""
        owners = {owner.name for owner in self.symbols.mro(cls)[0]}
        return (
            self._judgeable(cls)
            and not any(self.index.sets(owner, name) for owner in owners)
            and name not in self.symbols.index.set_from_outside
        )

    def _below_with(self, cls: ClassSymbol, name: str) -> str:
        """A class below `cls`, vLLM's or the client's, that has the attribute, or may have it."""
        for node in self.index.below(cls, self.symbols):
            members, foreign = self.index.members(node)
            strange = [base for base in foreign if not self.symbols.index.defined_in(last_name(base))]
            if name in members or strange:
                return node.name
        for below in self.symbols.below(cls):
            if self.symbols.member(below, name) is not None or not self.symbols.mro(below)[1]:
                return below.name
        return ""

    def _member_value(self, receiver: Instance | ClassSymbol, member: Member) -> Value:
        if isinstance(member, ClassSymbol):
            return member
        if isinstance(member, ValueSymbol):
            return self._value_of(member)
        if has_decorator(member.node, "property", "cached_property"):
            return self.annotated(member.node.returns, member.module)
        if isinstance(receiver, ClassSymbol) and not has_decorator(member.node, "classmethod"):
            return member  # a plain function: whoever calls it passes `self`
        return BoundMethod(receiver, member)

    def _value_of(self, member: ValueSymbol) -> Value:
        """What an attribute was declared as, or set to from a parameter that is."""
        node = member.node
        if isinstance(node, ast.AnnAssign):
            return self.annotated(node.annotation, member.module)
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and member.owner):
            return None
        for method in (n for n in member.owner.node.body if isinstance(n, ast.FunctionDef)):
            if any(inner is node for inner in ast.walk(method)):
                arguments = (*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs)
                for argument in (a for a in arguments if a.arg == node.value.id):
                    return self.annotated(argument.annotation, member.module)
        return None
