"""Checks functions that a client puts in place of a model's forward: they use the model class as if they were
its own. Standard library only.

speculators up to 0.4 captures hidden states so: `base_model.forward = types.MethodType(function,
base_model)`. What the function reads from `self`, and how it calls the decoder layers, must fit the target
architecture's classes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_data.compatibility.source.client import Client, ClientFile
from eagle3_data.compatibility.source.signatures import bind, of_method
from eagle3_data.compatibility.source.symbols import ClassSymbol, Symbols, dotted, last_name
from eagle3_data.compatibility.vllm.models import Architecture, loops_over_layers, named_classes
from eagle3_data.findings import Finding

LAYER_CLASS = re.compile(r"(DecoderLayer|Block)$")
REMEDY = (
    "use a client that captures through vLLM's own extract_hidden_states, or a vLLM this client was"
    " written for"
)


@dataclass(frozen=True)
class Patch:
    """`function` replaces a method of the object that `file` calls `target`."""

    file: ClientFile
    function: ast.FunctionDef
    target: str


def find_patches(client: Client) -> list[Patch]:
    return [patch for file in client.files for patch in _patches_of(file)]


def _patches_of(file: ClientFile) -> Iterator[Patch]:
    for node in ast.walk(file.tree):
        if not (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and last_name(node.value) == "MethodType"
        ):
            continue
        names = [argument.id for argument in node.value.args if isinstance(argument, ast.Name)]
        if len(names) == 2 and (function := file.functions.get(names[0])) is not None:
            yield Patch(file, function, names[1])


def check_patches(client: Client, architecture: Architecture, symbols: Symbols) -> list[Finding]:
    """Findings for every patch of the client, applied to the target's architecture."""
    findings: list[Finding] = []
    for patch in find_patches(client):
        findings += _eagle3_asked(patch, architecture, symbols)
        findings += _reaches_decoder(patch, architecture, symbols)
        if architecture.decoder is None:
            title = (
                f"{architecture.name}: the class that runs its decoder layers was not found, so"
                f" {patch.function.name} cannot be judged"
            )
            findings.append(
                Finding(
                    "patch-unknown",
                    "unknown",
                    title,
                    patch.file.location(patch.function),
                    symbols.location(architecture.cls),
                )
            )
            continue
        findings += _members_used(patch, architecture.decoder, symbols)
        findings += _layer_calls(patch, architecture.decoder, symbols)
    return list(dict.fromkeys(findings))


def _eagle3_asked(patch: Patch, architecture: Architecture, symbols: Symbols) -> Iterator[Finding]:
    calls = [
        node
        for node in ast.walk(patch.file.tree)
        if isinstance(node, ast.Call) and last_name(node) == "supports_eagle3"
    ]
    if calls and not architecture.supports_eagle3:
        title = (
            f"{architecture.title} does not implement SupportsEagle3, which the client requires after the"
            " load"
        )
        yield Finding(
            "not-eagle3",
            "fail",
            title,
            patch.file.location(calls[0]),
            symbols.location(architecture.cls),
            remedy=REMEDY,
        )


def _reaches_decoder(patch: Patch, architecture: Architecture, symbols: Symbols) -> Iterator[Finding]:
    """Whether one of the expressions assigned to the patched name starts with something the model class
    has."""
    assigned = [
        node
        for node in ast.walk(patch.file.tree)
        if isinstance(node, ast.Assign) and dotted(node.targets[0]) == patch.target
    ]
    firsts = {name: node for node in assigned if (name := _first_attribute(node.value))}
    if firsts and all(symbols.member(architecture.cls, name) is None for name in firsts):
        node = next(iter(firsts.values()))
        title = (
            f"{architecture.title} has no '{next(iter(firsts))}', through which the client reaches the"
            " decoder"
        )
        yield Finding(
            "missing-model-attribute",
            "fail",
            title,
            patch.file.location(node),
            symbols.location(architecture.cls),
            remedy=REMEDY,
        )


def _first_attribute(expression: ast.expr) -> str:
    """`a` of `model.a`, `model.a.b` and `model.a().b`."""
    while isinstance(expression, ast.Attribute | ast.Call):
        if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
            return expression.attr
        expression = expression.value if isinstance(expression, ast.Attribute) else expression.func
    return ""


def _members_used(patch: Patch, decoder: ClassSymbol, symbols: Symbols) -> Iterator[Finding]:
    """What the function reads from `self` and neither the decoder class nor the client itself puts there."""
    set_by_client = {
        node.attr
        for node in ast.walk(patch.file.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(patch.function):
        if (
            not (isinstance(node, ast.Attribute) and dotted(node.value) == "self")
            or node.attr in set_by_client
        ):
            continue
        if symbols.member(decoder, node.attr) is None:
            title = (
                f"{decoder.name} has no '{node.attr}', which {patch.function.name} uses in place of its"
                " forward"
            )
            yield Finding(
                "missing-model-method",
                "fail",
                title,
                patch.file.location(node),
                symbols.location(decoder),
                remedy=REMEDY,
            )


def _layer_calls(patch: Patch, decoder: ClassSymbol, symbols: Symbols) -> Iterator[Finding]:
    layer = _layer_class(decoder, symbols)
    forward = symbols.method(layer, "forward") if layer else None
    for loop in (
        node for node in ast.walk(patch.function) if isinstance(node, ast.For) and loops_over_layers(node)
    ):
        names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
        for call in (
            node for node in ast.walk(loop) if isinstance(node, ast.Call) and dotted(node.func) in names
        ):
            if layer is None or forward is None:
                title = (
                    f"{decoder.name}: the class of its layers was not found, so the client's call of them"
                    " cannot be judged"
                )
                yield Finding(
                    "patch-unknown", "unknown", title, patch.file.location(call), symbols.location(decoder)
                )
                continue
            for misfit in bind(call, of_method(forward)):
                yield Finding(
                    misfit.id,
                    "fail",
                    f"{layer.name}.forward() {misfit.message}",
                    patch.file.location(call),
                    symbols.location(forward),
                    remedy=REMEDY,
                )
            yield from _left_out(patch, call, decoder, layer, symbols)


def _left_out(
    patch: Patch, call: ast.Call, decoder: ClassSymbol, layer: ClassSymbol, symbols: Symbols
) -> Iterator[Finding]:
    """vLLM's own forward passes more to its layers than the client does: harmless where the argument is
    unused by the model."""
    own = symbols.method(decoder, "forward")
    given = len(call.args) + len(call.keywords)
    for node in ast.walk(own.node) if own else ():
        if (
            isinstance(node, ast.Call)
            and dotted(node.func) == "layer"
            and own
            and len(node.args) + len(node.keywords) > given
        ):
            more = len(node.args) + len(node.keywords)
            title = (
                f"{decoder.name}.forward passes {more} arguments to {layer.name}, the client {given}; whether"
                " the rest matters depends on the model"
            )
            yield Finding(
                "layer-argument-left-out",
                "unknown",
                title,
                patch.file.location(call),
                symbols.tree.location(own.module, node),
            )
            return


def _layer_class(decoder: ClassSymbol, symbols: Symbols) -> ClassSymbol | None:
    """The class of the decoder's layers: the first named like one, nearest in the inheritance."""
    candidates = [
        cls
        for cls in named_classes(symbols, decoder)
        if LAYER_CLASS.search(cls.name) and "Vision" not in cls.name
    ]
    return candidates[0] if candidates else None
