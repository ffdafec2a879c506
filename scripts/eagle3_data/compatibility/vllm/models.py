"""The target's architecture as a vLLM source tree knows it: registered? SupportsEagle3? which class runs its
decoder layers? Standard library only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_data.compatibility.source.symbols import ClassSymbol, Symbols, dotted
from eagle3_data.findings import Finding

REGISTRY = "vllm.model_executor.models.registry"
MODELS_PACKAGE = "vllm.model_executor.models"
MODEL_PACKAGES = (MODELS_PACKAGE, "vllm.models")
TRANSFORMERS_BACKEND = "TransformersForCausalLM"
TOKEN_EMBEDDINGS = ("embed_tokens", "embed_input_ids", "get_input_embeddings", "wte", "word_embeddings")
LAYER_LISTS = ("layers", "_active_layers")
NOT_THE_DECODER = re.compile(
    r"Vision|Tower|Audio|Encoder|Projector|Processor|Config|Info|Dummy|Pooler|Connector|Mixin$|Head$"
)


@dataclass(frozen=True)
class Architecture:
    """An architecture as registered: its class, and the class whose forward runs the decoder layers (None:
    not found statically)."""

    name: str
    cls: ClassSymbol
    decoder: ClassSymbol | None
    supports_eagle3: bool

    @property
    def title(self) -> str:
        """The architecture and, where it has another name, its class."""
        return self.name if self.name == self.cls.name else f"{self.name} ({self.cls.name})"


class ModelRegistry:
    """vLLM's model registry, read from its source."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self.entries = dict(_registered(symbols.tree.parse(REGISTRY)))

    def model_class(self, architecture: str) -> ClassSymbol | None:
        if (entry := self.entries.get(architecture)) is None:
            return None
        found = self.symbols.resolve(self.module(architecture) or "", entry[1])
        return found if isinstance(found, ClassSymbol) else None

    def module(self, architecture: str) -> str | None:
        """The module that a registered architecture's class is imported from."""
        if (entry := self.entries.get(architecture)) is None:
            return None
        return entry[0] if entry[0].startswith("vllm.") else f"{MODELS_PACKAGE}.{entry[0]}"

    def registry_line(self, architecture: str) -> str:
        for node in ast.walk(self.symbols.tree.parse(REGISTRY)):
            if isinstance(node, ast.Constant) and node.value == architecture:
                return self.symbols.tree.location(REGISTRY, node)
        return self.symbols.tree.location(REGISTRY, None)

    def describe(self, architecture: str, text_architecture: str = "") -> Architecture | None:
        """The architecture, or None where it is not registered or its class is not in the tree.

        `text_architecture` is that of the language model inside a multimodal wrapper, as the target's
        config.json names it: used where the wrapper picks its language model by that name at run time.
        """
        if (cls := self.model_class(architecture)) is None:
            return None
        return Architecture(
            name=architecture,
            cls=cls,
            decoder=self._decoder(cls, text_architecture),
            supports_eagle3=self.symbols.has_base(cls, "SupportsEagle3"),
        )

    def _decoder(self, cls: ClassSymbol, text_architecture: str) -> ClassSymbol | None:
        """Breadth first from `cls` through the classes its constructors name, the first whose forward loops
        over its layers."""
        queue, seen = [cls], {cls}
        while queue:
            current = queue.pop(0)
            if runs_layers(self.symbols, current):
                return current
            for candidate in self._constructed(current, text_architecture):
                if candidate not in seen and not NOT_THE_DECODER.search(candidate.name):
                    seen.add(candidate)
                    queue.append(candidate)
        return None

    def _constructed(self, cls: ClassSymbol, text_architecture: str) -> Iterator[ClassSymbol]:
        """Classes that `cls` or a base of it names outside annotations, and architectures it asks the
        registry for."""
        yield from named_classes(self.symbols, cls)
        for owner in self.symbols.mro(cls)[0]:
            for node in ast.walk(owner.node):
                if isinstance(node, ast.Call) and dotted(node.func).endswith("init_vllm_registered_model"):
                    names = [
                        c.value
                        for k in node.keywords
                        if k.arg == "architectures"
                        for c in ast.walk(k.value)
                        if isinstance(c, ast.Constant)
                    ]
                    for name in names or [text_architecture]:
                        if isinstance(name, str) and (registered := self.model_class(name)) is not None:
                            yield registered


def embeds_tokens(symbols: Symbols, cls: ClassSymbol) -> bool:
    """Whether the class is a language model's: it embeds token ids."""
    return any(symbols.member(cls, name) is not None for name in TOKEN_EMBEDDINGS)


def named_classes(symbols: Symbols, cls: ClassSymbol) -> Iterator[ClassSymbol]:
    """Model classes that `cls` or a base of it names in its code: those it may build."""
    for owner in symbols.mro(cls)[0]:
        for node in _expressions(owner.node):
            if isinstance(node, ast.Name | ast.Attribute) and dotted(node):
                found = symbols.lookup(owner.module, node)
                if isinstance(found, ClassSymbol) and found.module.startswith(MODEL_PACKAGES):
                    yield found


def runs_layers(symbols: Symbols, cls: ClassSymbol) -> bool:
    """Whether the forward of `cls` itself runs decoder layers in a loop."""
    forward = symbols.method(cls, "forward")
    return forward is not None and any(
        isinstance(node, ast.For) and loops_over_layers(node) for node in ast.walk(forward.node)
    )


def loops_over_layers(loop: ast.For) -> bool:
    """`for ... in self.layers` in any wrapping, or `for i in range(start_layer, end_layer)` with
    `self.layers[i]` inside."""
    nodes = list(ast.walk(loop.iter))
    if any(
        isinstance(node, ast.Attribute) and node.attr in LAYER_LISTS and dotted(node.value) == "self"
        for node in nodes
    ):
        return True
    return "self.layers[" in ast.unparse(loop) and any(
        isinstance(node, ast.Attribute) and node.attr == "end_layer" for node in nodes
    )


def _registered(tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
    for node in ast.walk(tree):
        for key, value in zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ():
            if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple) and len(value.elts) == 2:
                names = [
                    element.value
                    for element in value.elts
                    if isinstance(element, ast.Constant) and isinstance(element.value, str)
                ]
                if len(names) == 2:
                    yield str(key.value), (names[0], names[1])


def _expressions(cls: ast.ClassDef) -> Iterator[ast.AST]:
    """Nodes of a class body except annotations and base classes, which name classes without building them."""
    queue: list[ast.AST] = list(cls.body)
    while queue:
        node = queue.pop(0)
        yield node
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "bases", "decorator_list"):
                continue
            queue += [
                child
                for child in (value if isinstance(value, list) else [value])
                if isinstance(child, ast.AST)
            ]


def check_architecture(
    registry: ModelRegistry, architecture: str, text_architecture: str = ""
) -> tuple[Architecture | None, list[Finding]]:
    """Whether vLLM knows the architecture and can capture hidden states from it."""
    found = registry.describe(architecture, text_architecture)
    if found is not None:
        return found, [] if found.supports_eagle3 else [_not_eagle3(registry, found)]
    if architecture in registry.entries:
        title = (
            f"{architecture} is registered, but its class {'.'.join(registry.entries[architecture])} is not"
            " in the tree"
        )
        place = registry.registry_line(architecture)
        return None, [
            Finding(
                "architecture-unresolved",
                "unknown",
                title,
                vllm_location=place,
                remedy="rely on the canary",
            )
        ]
    return None, [_unregistered(registry, architecture)]


def _not_eagle3(registry: ModelRegistry, architecture: Architecture) -> Finding:
    title = (
        f"{architecture.title} does not implement SupportsEagle3, so vLLM refuses to capture hidden states"
        " from it, after loading its weights"
    )
    remedy = (
        "use a vLLM whose class does (`matrix` shows which), or extraction.engine:"
        " eagle3_data.engines.transformers:TransformersEngine"
    )
    return Finding(
        "not-eagle3", "fail", title, vllm_location=registry.symbols.location(architecture.cls), remedy=remedy
    )


def _unregistered(registry: ModelRegistry, architecture: str) -> Finding:
    place = registry.symbols.tree.location(REGISTRY, None)
    title = f"{architecture} is not in vLLM's model registry"
    if TRANSFORMERS_BACKEND in registry.entries:
        title += "; vLLM will try its Transformers backend, whose capture cannot be judged from the source"
        remedy = "rely on the canary, or use a vLLM that has the architecture"
        return Finding("architecture-unregistered", "unknown", title, vllm_location=place, remedy=remedy)
    remedy = "use a vLLM that has the architecture"
    return Finding("architecture-unregistered", "fail", title, vllm_location=place, remedy=remedy)
