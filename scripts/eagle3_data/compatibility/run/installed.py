"""Stage A as the workflow's rule needs it: the installed packages, the configured target, the tokenized
data."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from eagle3_data.compatibility.client import versions
from eagle3_data.compatibility.run import arithmetic
from eagle3_data.compatibility.run.demo_values import check_demo_values
from eagle3_data.compatibility.run.importing import Importing
from eagle3_data.compatibility.run.remote_code import check_remote_code
from eagle3_data.compatibility.run.static import Model, Question, check_tree
from eagle3_data.compatibility.source.client import Client, client_of_tree, open_client
from eagle3_data.compatibility.source.source_tree import SourceTree, installed_tree
from eagle3_data.compatibility.source.symbols import Symbols
from eagle3_data.compatibility.vllm.engine_class import check_engine
from eagle3_data.compatibility.vllm.models import ModelRegistry
from eagle3_data.compatibility.vllm.wire_contract import EnginePlan
from eagle3_data.config import Compatibility, Extraction, Tokenization, TrainingSet
from eagle3_data.config import Target as TargetSection
from eagle3_data.findings import Finding, Findings, accept, in_order
from eagle3_data.records import JsonObject
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.system import devices
from eagle3_data.system.links import possible_link
from eagle3_data.target import TargetDescription, read_model_config
from eagle3_data.target.layers import OFFSETS, default_layers

VLLM_ENGINES = "eagle3_data.engines.vllm"
TRAINING_SET: dict[str | None, str] = {
    "hard link": "hard links into the store, no extra space",
    "reflink": "reflinks to the store's files, no extra space",
    "copy": "copies of the states",
    None: "unknown: no file can be written to try it",
}
OTHER_CLIENTS = ("speculators", "hs_connectors")
"""Installed beside our engine and bound, too; a run does not go through them, so what fails there is a
warning here."""


def requested_layers(extraction: Extraction, num_hidden_layers: int) -> tuple[int, ...]:
    """The layer ids in vLLM's convention, unchecked: their faults become findings."""
    if extraction.layers is None:
        return default_layers(num_hidden_layers)
    return tuple(k + OFFSETS[extraction.layer_convention] for k in extraction.layers)


def check(
    target: TargetDescription,
    target_section: TargetSection,
    tokenization: Tokenization,
    extraction: Extraction,
    compatibility: Compatibility,
    batches: BatchIndex,
    results: Path,
    training_set: TrainingSet | None = None,
) -> Findings:
    """Everything that can be checked about this run on this machine."""
    started = time.monotonic()
    layers = requested_layers(extraction, target.num_hidden_layers)
    workload = arithmetic.Workload(
        batches.tokens,
        batches.samples,
        batches.longest,
        layers,
        target.hidden_size,
        extraction.stored_dtype,
    )
    subject = describe(target, workload, extraction)
    findings = check_remote_code(
        target.path, target.model_type, target.needs_remote_code, target_section.trust_remote_code
    )
    findings += check_engine(extraction.engine)
    way = possible_link(Path(extraction.store), results)
    subject |= {"training set": TRAINING_SET[way]}
    findings += arithmetic.check_store(workload, extraction.store)
    findings += arithmetic.check_disk(workload, extraction.store)
    findings += arithmetic.check_copies(workload, extraction.store, results, way)
    on_vllm = extraction.engine.startswith(VLLM_ENGINES)
    tree = installed_tree("vllm") if on_vllm else None
    importing = Importing(modules_of(tree, target) if tree else ())
    if on_vllm:
        findings += versions.check_installed()
        findings += arithmetic.check_device_memory(
            target.weights_bytes, extraction.tensor_parallel, device_bytes(compatibility)
        )
        findings += arithmetic.check_length(
            tokenization.max_length + 1, arithmetic.positions_of(read_model_config(Path(target.path)))
        )
        findings += check_vllm(tree, target, layers, extraction, workload.longest) if tree else []
        subject |= {"vLLM": tree.version if tree else "not installed"}
    else:
        findings += arithmetic.check_layers(layers, target.num_hidden_layers, "extraction.layers")
    findings += check_tokenizer(target, target_section, tokenization)
    if training_set:
        findings += check_demo_values(target.vocab_size, tokenization, training_set)
    findings += importing.finish()
    if unchecked := not_checked(target, extraction, compatibility):
        subject |= {"not checked": "; ".join(unchecked)}
    return Findings(in_order(accept(findings, compatibility.allow)), subject, time.monotonic() - started)


def not_checked(target: TargetDescription, extraction: Extraction, compatibility: Compatibility) -> list[str]:
    """What this check could not look at, each with the reason."""
    if not extraction.engine.startswith(VLLM_ENGINES):
        return [f"vLLM, its modules and device memory: extraction.engine is {extraction.engine}"]
    unchecked = []
    if device_bytes(compatibility) is None:
        unchecked.append(
            "device memory: this machine has no GPU and compatibility.device_memory_gib is not set"
        )
    if not arithmetic.positions_of(read_model_config(Path(target.path))):
        unchecked.append("lengths: config.json has no max_position_embeddings")
    if compatibility.canary == "off":
        unchecked.append("what the engine computes: compatibility.canary is off")
    return unchecked


def modules_of(tree: SourceTree, target: TargetDescription) -> list[str]:
    """The modules of vLLM that hold the target's architecture and its language model's."""
    registry = ModelRegistry(Symbols(tree))
    found = (registry.module(name) for name in (target.architecture, target.text_architecture))
    return list(dict.fromkeys(module for module in found if module))


def check_devices(
    target: TargetDescription, extraction: Extraction, compatibility: Compatibility
) -> Findings:
    """What only the job that loads the target can check: whether its own devices are enough and hold the
    weights."""
    if not extraction.engine.startswith(VLLM_ENGINES):
        return Findings(())
    findings = arithmetic.check_device_count(extraction.tensor_parallel, len(devices.given_devices()))
    findings += arithmetic.check_device_memory(
        target.weights_bytes, extraction.tensor_parallel, devices.smallest_memory()
    )
    return Findings(in_order(accept(findings, compatibility.allow)))


def device_bytes(compatibility: Compatibility) -> int | None:
    """Memory of one device as configured, else of this machine's smallest; None where neither is known."""
    if compatibility.device_memory_gib is not None:
        return int(compatibility.device_memory_gib * (1 << 30))
    return devices.smallest_memory()


def check_vllm(
    tree: SourceTree, target: TargetDescription, layers: tuple[int, ...], extraction: Extraction, longest: int
) -> list[Finding]:
    """The installed vLLM with our engine, this target and these engine arguments; then the other clients' own
    code."""
    plan = replace(
        EnginePlan.of(extraction.tensor_parallel, extraction.engine_arguments, longest),
        client_location="extraction",
    )
    model = Model.of(read_model_config(Path(target.path)))
    findings = [*check_tree(tree, Question(own_clients(), model, layers, plan, extraction.engine_arguments))]
    return findings + [_warned(finding) for finding in check_tree(tree, Question(other_clients(), plan=plan))]


def own_clients() -> tuple[Client, ...]:
    """Our vLLM engine and connector, from the package this module belongs to."""
    return (
        replace(
            open_client(Path(__file__).parents[2] / "engines" / "vllm"), label="eagle3_data.engines.vllm"
        ),
    )


def other_clients() -> tuple[Client, ...]:
    trees: Iterable[SourceTree | None] = (installed_tree(package) for package in OTHER_CLIENTS)
    clients = (client_of_tree(tree) for tree in trees if tree is not None)
    return tuple(client for client in clients if client.files)


def _warned(finding: Finding) -> Finding:
    return replace(finding, level="warn") if finding.level == "fail" else finding


def check_tokenizer(
    target: TargetDescription, section: TargetSection, tokenization: Tokenization
) -> list[Finding]:
    """A6; imported late, for it needs transformers, which takes seconds."""
    from eagle3_data.compatibility.run.tokenizer import check_tokenizer as check_files

    return check_files(target.path, target.vocab_size, section.trust_remote_code, tokenization)


def describe(target: TargetDescription, workload: arithmetic.Workload, extraction: Extraction) -> JsonObject:
    """What was judged, for the report."""
    return {
        "target": (
            f"{target.path} ({target.architecture}, {target.num_hidden_layers} layers of"
            f" {target.hidden_size}, quantization {target.quantization})"
        ),
        "layers": list(workload.layers),
        "data": f"{workload.samples} samples, {workload.tokens} tokens, longest {workload.longest}",
        "states": (
            f"{arithmetic.human_bytes(workload.bytes_per_token)} a token,"
            f" {arithmetic.human_bytes(workload.size_bytes)} in all, in {extraction.store}"
        ),
        "weights a device": (
            f"{arithmetic.human_bytes(target.weights_bytes / extraction.tensor_parallel)} over"
            f" {extraction.tensor_parallel}"
        ),
    }
