"""Stage A as the workflow's rule needs it: the installed packages, the configured target, the tokenized data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from eagle3_data.compatibility import arithmetic, versions
from eagle3_data.compatibility.capture import check_capture
from eagle3_data.compatibility.findings import Finding, Findings, accept, in_order
from eagle3_data.compatibility.models import ModelRegistry, check_architecture
from eagle3_data.compatibility.source_tree import SourceTree, installed_tree
from eagle3_data.compatibility.symbols import Symbols
from eagle3_data.config import Compatibility, Extraction, Tokenization
from eagle3_data.config import Target as TargetSection
from eagle3_data.layers import OFFSETS, default_layers
from eagle3_data.target import TargetDescription, read_model_config

VLLM_ENGINES = "eagle3_data.engines.vllm"


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
    batches: dict[str, Any],
) -> Findings:
    """Everything stage A can tell about this run on this machine."""
    started = time.monotonic()
    layers = requested_layers(extraction, target.num_hidden_layers)
    workload = arithmetic.Workload(batches["tokens"], batches["samples"], batches["longest"], layers, target.hidden_size, extraction.dtype)
    findings = arithmetic.check_layers(layers, target.num_hidden_layers, "extraction.layers")
    findings += check_remote_code(target, target_section)
    findings += arithmetic.check_length(max(workload.longest, 1), target.max_position_embeddings)
    findings += arithmetic.check_disk(workload, extraction.store)
    subject = describe(target, workload, extraction)
    if extraction.engine.startswith(VLLM_ENGINES):
        tree = installed_tree("vllm")
        findings += versions.check_installed()
        findings += arithmetic.check_tensor_parallel(read_model_config(Path(target.path)), extraction.tensor_parallel)
        findings += arithmetic.check_device_memory(target.weights_bytes, extraction.tensor_parallel, arithmetic.device_memory())
        findings += check_model(tree, target, layers) if tree else []
        subject |= {"vLLM": tree.version if tree else "not installed"}
    findings += check_tokenizer(target, target_section)
    return Findings(in_order(accept(findings, compatibility.allow)), subject, time.monotonic() - started)


def check_model(tree: SourceTree, target: TargetDescription, layers: tuple[int, ...]) -> list[Finding]:
    """The architecture and what its forward captures, in an installed or any other vLLM."""
    symbols = Symbols(tree)
    architecture, findings = check_architecture(ModelRegistry(symbols), target.architecture, target.text_architecture, target.needs_remote_code)
    if architecture is None or not architecture.supports_eagle3:
        return findings
    return findings + check_capture(symbols, architecture, layers, target.num_hidden_layers)


def check_remote_code(target: TargetDescription, section: TargetSection) -> list[Finding]:
    if not target.needs_remote_code or section.trust_remote_code:
        return []
    title = f"the checkpoint in {target.path} brings its own Python code (auto_map in config.json), and target.trust_remote_code is false"
    remedy = "read that code; if you trust it, set target.trust_remote_code: true"
    return [Finding("remote-code-needed", "fail", title, "target.trust_remote_code", remedy=remedy)]


def check_tokenizer(target: TargetDescription, section: TargetSection) -> list[Finding]:
    """A6; imported late, for it needs transformers, which takes seconds."""
    from eagle3_data.compatibility.tokenizer import check_tokenizer as check_files

    return check_files(target.path, target.vocab_size, target.has_chat_template, section.trust_remote_code)


def describe(target: TargetDescription, workload: arithmetic.Workload, extraction: Extraction) -> dict[str, Any]:
    """What was judged, for the report."""
    return {
        "target": f"{target.path} ({target.architecture}, {target.num_hidden_layers} layers of {target.hidden_size}, quantization {target.quantization})",
        "layers": list(workload.layers),
        "data": f"{workload.samples} samples, {workload.tokens} tokens, longest {workload.longest}",
        "states": f"{arithmetic.human_bytes(workload.bytes_per_token)} a token, {arithmetic.human_bytes(workload.size_bytes)} in all, in {extraction.store}",
        "weights a device": f"{arithmetic.human_bytes(target.weights_bytes / extraction.tensor_parallel)} over {extraction.tensor_parallel}",
    }
