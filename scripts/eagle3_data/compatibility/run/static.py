"""Stage A on any clients and any vLLM tree, with or without a target model: no import, no GPU, seconds.
Standard library and packaging only."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from eagle3_data.compatibility.client.binding import check_client
from eagle3_data.compatibility.client.patched import check_patches
from eagle3_data.compatibility.client.versions import check_declared
from eagle3_data.compatibility.run.arithmetic import check_layers, check_tensor_parallel
from eagle3_data.compatibility.source.client import Client
from eagle3_data.compatibility.source.source_tree import SourceTree
from eagle3_data.compatibility.source.symbols import Symbols
from eagle3_data.compatibility.vllm.cache_layout import check_cache_layout
from eagle3_data.compatibility.vllm.capture import check_capture
from eagle3_data.compatibility.vllm.models import Architecture, ModelRegistry, check_architecture
from eagle3_data.compatibility.vllm.wire_contract import EnginePlan, check_contract, check_engine_arguments
from eagle3_data.errors import InputError
from eagle3_data.findings import Finding, in_order
from eagle3_data.records import JsonObject
from eagle3_data.target import architectures_of, read_model_config, text_config
from eagle3_data.target.layers import default_layers


@dataclass(frozen=True)
class Model:
    """What stage A needs of a config.json."""

    config: JsonObject
    architecture: str
    text_architecture: str
    model_type: str
    num_hidden_layers: int

    @classmethod
    def of(cls, config: JsonObject) -> Model:
        """Raises InputError where the configuration is not that of a decoder language model."""
        text = text_config(config)
        architectures = architectures_of(config)
        if not architectures or not isinstance(text.get("num_hidden_layers"), int):
            raise InputError(
                "the model's config.json lacks architectures or num_hidden_layers (looked in text_config,"
                " too); give a decoder language model's"
            )
        return cls(
            config=config,
            architecture=architectures[0],
            text_architecture=(architectures_of(text) or architectures)[0],
            model_type=str(text.get("model_type") or config.get("model_type") or ""),
            num_hidden_layers=text["num_hidden_layers"],
        )

    @classmethod
    def read(cls, path: Path) -> Model:
        """Of a config.json or of the directory that holds it. Raises InputError."""
        if path.is_dir() or not path.exists():
            return cls.of(read_model_config(path))
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{path} cannot be read as JSON; --model wants a config.json or the directory that holds it"
            ) from error
        if not isinstance(config, dict):
            raise InputError(
                f"{path} does not hold a JSON object; --model wants a config.json or the directory that"
                " holds it"
            )
        return cls.of(config)


@dataclass(frozen=True)
class Question:
    """What is asked of a vLLM tree. `layers` are in vLLM's convention; None: the default ones."""

    clients: tuple[Client, ...] = ()
    model: Model | None = None
    layers: tuple[int, ...] | None = None
    plan: EnginePlan = field(default_factory=EnginePlan)
    engine_arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def extracts_with_vllm(self) -> bool:
        """Whether vLLM's own extraction is used; without a client that is what is asked about."""
        return not self.clients or any(client.uses_extraction_method for client in self.clients)

    @property
    def asked_layers(self) -> Sequence[int]:
        return self.layers or (default_layers(self.model.num_hidden_layers) if self.model else ())


def check_tree(tree: SourceTree, question: Question) -> tuple[Finding, ...]:
    """Every finding of stage A that follows from sources and config.json alone, worst first."""
    symbols = Symbols(tree)
    findings: list[Finding] = []
    for client in question.clients:
        findings += check_declared(client, tree)
        findings += check_client(client, symbols)
        findings += check_cache_layout(client, symbols)
    architecture: Architecture | None = None
    if question.model is not None:
        architecture, model_findings = check_model(symbols, question, question.model)
        findings += model_findings
    elif question.layers is not None:
        findings += check_layers(question.layers, None)
    if question.extracts_with_vllm:
        plan = replace(question.plan, model_type=question.model.model_type if question.model else "")
        findings += check_contract(symbols, plan, architecture, question.clients)
    findings += check_engine_arguments(symbols, question.engine_arguments)
    return in_order(findings)


def check_model(
    symbols: Symbols, question: Question, model: Model
) -> tuple[Architecture | None, list[Finding]]:
    """The target's architecture in this tree, with the findings about it."""
    architecture, findings = check_architecture(
        ModelRegistry(symbols), model.architecture, model.text_architecture
    )
    if not question.extracts_with_vllm:
        findings = [
            finding for finding in findings if finding.id != "not-eagle3"
        ]  # the client's own patch decides whether it asks
    if question.layers is not None or question.extracts_with_vllm:
        findings += check_layers(question.asked_layers, model.num_hidden_layers)
    findings += check_tensor_parallel(model.config, question.plan.tensor_parallel)
    if architecture is None:
        return None, findings
    for client in question.clients:
        findings += check_patches(client, architecture, symbols)
    if question.extracts_with_vllm and architecture.supports_eagle3:
        findings += check_capture(symbols, architecture, question.asked_layers, model.num_hidden_layers)
    return architecture, findings
