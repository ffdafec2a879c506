"""Stage B, the canary: before the target is loaded, a small random model of its architecture goes through the
same engine.

About a minute. What it proves on the pass's own devices, with the pass's own engine arguments: the engine
starts, every sample comes back, as itself, whole, finite; each captured layer is the layer that was asked for
(against a plain forward pass of transformers); chunks, shared prefixes and other samples change nothing; the
last state gives the greedy token. `model` and `quantization` are what is sent through, `checks` what must
come out.
"""

from __future__ import annotations

import re
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from eagle3_data.canary.checks import MAX_BATCHED_TOKENS, Answer, check
from eagle3_data.canary.model import Blueprint, build_canary, design_canary
from eagle3_data.canary.quantization import quantization_of, quantize_canary, scheme_of
from eagle3_data.engines.base import EngineSettings, Extracted, Fatal, Ready, Rejected, Request
from eagle3_data.engines.process import EngineProcess
from eagle3_data.errors import EngineError, InputError, causes_of, errno_of, headline
from eagle3_data.findings import Finding
from eagle3_data.records import JsonObject
from eagle3_data.records.failures import describe_situation
from eagle3_data.target import read_model_config, text_config
from eagle3_data.validation.head import read_head

LENGTHS = (1, 7, 16, 33, 65, 150)
"""Tokens: uneven, around the usual block sizes, and one that the canary's engine computes in three steps."""
SHARED_PREFIX = 40
DEADLINE_S = 900.0
"""For the engine's start and all its answers. A start on eight GPUs, kernels compiled, takes three
minutes."""

NO_KERNEL = re.compile(
    r"'function' object is not subscriptable"  # a Triton kernel, called where there is no Triton
    r"|'_OpNamespace' '_\w+' object has no attribute|\bTriton\b"
    r"|(AssertionError|NotImplementedError)[^;]*/vllm/[\w/]*/cpu_\w+\.py:\d+"  # by the CPU's stand-in itself
    r"|not (yet )?(supported|implemented) (on|for|by) (the )?CPU|CPU \w+ (only supports|does not support)",
    re.IGNORECASE,
)
"""What vLLM's build for CPUs says where an architecture needs a kernel that exists for GPUs only."""
NO_KERNEL_REMEDY = (
    "extract on a machine with GPUs, or with extraction.engine:"
    " eagle3_data.engines.transformers:TransformersEngine"
)


def run_canary(
    settings: EngineSettings, work: Path, log: Path, deadline_s: float = DEADLINE_S
) -> list[Finding]:
    """Build the canary below `work`, extract from it, check it. `settings` are the pass's own. Returns what
    is wrong (fail) or was not covered (unknown)."""
    shutil.rmtree(work, ignore_errors=True)
    try:
        target = Path(settings.model_path)
        built = _build(target, work / "model", settings)
        if isinstance(built, Finding):
            return [built]
        quantization = quantization_of(read_model_config(target))
        quantized = bool(quantization) and quantize_canary(target, work / "model", work / "quantized")
        config = text_config(read_model_config(work / "model"))
        (work / "states").mkdir()
        plain = replace(
            settings,
            model_path=str(work / "model"),
            layers=tuple(range(1, config["num_hidden_layers"] + 1)),
            max_length=max(LENGTHS),
            states_root=str((work / "states").resolve()),
            arguments=_canary_arguments(settings, bool(quantization) and not quantized),
        )
        through = replace(plain, model_path=str(work / "quantized")) if quantized else plain
        answers = _extract(through, prompts(config["vocab_size"]), log, deadline_s)
        findings = [answers] if isinstance(answers, Finding) else check(plain, answers, config["hidden_size"])
        return [*findings, *missing_layers(built), *_not_covered(None if quantized else quantization)]
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _build(target: Path, directory: Path, settings: EngineSettings) -> Blueprint | Finding:
    try:
        return build_canary(target, directory, settings.tensor_parallel, settings.trust_remote_code)
    except Exception as error:  # noqa: BLE001  whatever transformers raises is the finding
        if not any(errno_of(one) for one in (error, *causes_of(error))):
            return not_built(error)
        title = f"the small model cannot be made in {directory}: {_with_causes(error)}"
        remedy = "it takes up to 5 GB beside the store for a minute: check free space and permissions"
        return Finding(id="canary-not-built", level="fail", title=title, remedy=remedy)


def foresee_canary(target: Path, tensor_parallel: int, trust_remote_code: bool) -> list[Finding]:
    """What the canary of the checkpoint `target` will not be able to judge, before any engine starts."""
    config = read_model_config(target)
    try:
        missing = missing_layers(design_canary(target, tensor_parallel, trust_remote_code))
    except Exception as error:  # noqa: BLE001  whatever transformers raises is the finding
        missing = [not_built(error)]
    quantization = quantization_of(config)
    covered = quantization is None or scheme_of(quantization) is not None
    return [
        *missing,
        *_not_covered(None if covered else quantization),
        *_foresee_head(target, trust_remote_code),
    ]


def _foresee_head(target: Path, trust_remote_code: bool) -> list[Finding]:
    try:
        read_head(target, trust_remote_code)
        return []
    except InputError as error:
        title = f"whether a sample's last state gives the engine's next token cannot be checked: {error}"
        remedy = "none known; validation/<batch>.json says what validation proves without it"
        return [Finding("greedy-token-unknown", "unknown", title, remedy=remedy)]


def not_built(error: Exception) -> Finding:
    """The small model cannot be built, through no fault of the target or the engine."""
    title = f"transformers cannot build a small model of the target's architecture: {_with_causes(error)}"
    remedy = (
        "nothing proves the engine before the load; install a transformers version that has the"
        " architecture, or set target.trust_remote_code if its code is in the checkpoint"
    )
    return Finding(id="canary-not-built", level="unknown", title=title, remedy=remedy)


def missing_layers(blueprint: Blueprint) -> list[Finding]:
    if not blueprint.missing:
        return []
    title = (
        f"{blueprint.missing} of the target's layers are of a kind that the canary does not have; it has"
        f" layers {', '.join(map(str, blueprint.kept))} (counted from 0)"
    )
    remedy = "none known; of states of such layers, only structure and numbers are proven"
    return [Finding("canary-coverage", "unknown", title, remedy=remedy)]


def _with_causes(error: Exception) -> str:
    return "; caused by ".join(headline(one) for one in (error, *causes_of(error)))


def prompts(vocab_size: int) -> list[tuple[int, ...]]:
    """Random token ids, without the last one, which stands for the special tokens of a cut vocabulary."""
    generator = np.random.default_rng(0)
    plain = [tuple(generator.integers(0, vocab_size - 1, length).tolist()) for length in LENGTHS]
    forked = plain[-1][:SHARED_PREFIX] + tuple(generator.integers(0, vocab_size - 1, 10).tolist())
    return [*plain, forked]


def _canary_arguments(settings: EngineSettings, only_target_quantized: bool) -> JsonObject:
    """The pass's own, but smaller steps; a quantization that says how the target's weights are stored is not
    that of a plain canary."""
    kept = {
        name: value
        for name, value in settings.arguments.items()
        if not (only_target_quantized and name == "quantization")
    }
    small = (
        {"max_num_batched_tokens": MAX_BATCHED_TOKENS, "max_num_seqs": 8} if "vllm" in settings.engine else {}
    )
    return {**kept, **small}


def _not_covered(quantization: JsonObject | None) -> list[Finding]:
    if not quantization:
        return []
    title = (
        f"the target's quantization ({quantization.get('quant_method', 'unknown method')}) was not covered:"
        " the canary is in bfloat16"
    )
    remedy = (
        "none known; of the target itself, validation proves each sample's last state by its greedy token,"
        " and no other layer"
    )
    return [Finding(id="canary-quantization", level="unknown", title=title, remedy=remedy)]


def _extract(
    settings: EngineSettings, samples: list[tuple[int, ...]], log: Path, deadline_s: float
) -> list[Answer] | Finding:
    """All samples together, then each alone."""
    deadline = time.monotonic() + deadline_s
    process = EngineProcess(settings, log)
    try:
        word = process.receive(deadline_s)
        if not isinstance(word, Ready):
            return _engine_failed(
                "canary-engine-start",
                "the engine cannot start with a small model of the target's architecture",
                word,
                process,
                deadline_s,
            )
        answers: list[Answer] = []
        for wave, alone in [(samples, False), *(([ids], True) for ids in samples)]:
            waiting: dict[str, Request] = {}
            for ids in wave:
                key = f"{len(answers) + len(waiting):02d}"
                waiting[key] = Request(key, ids, f"{settings.states_root}/{key}.safetensors")
                process.send(waiting[key])
            while waiting:
                word = process.receive(max(0.0, deadline - time.monotonic()))
                if isinstance(word, Fatal | Rejected):
                    title = "the engine cannot extract from a small model of the target's architecture"
                    return _engine_failed("canary-extraction", title, word, process, deadline_s)
                if not isinstance(word, Extracted) or word.key not in waiting:
                    lost = ", ".join(f"{len(request.token_ids)} tokens" for request in waiting.values())
                    return _engine_failed(
                        "canary-count",
                        f"{len(waiting)} samples did not come back ({lost})",
                        word,
                        process,
                        deadline_s,
                    )
                answers.append(Answer(waiting.pop(word.key), word.greedy_token, alone))
        process.close(threading.Event())
        return answers
    finally:
        process.kill()


def _engine_failed(name: str, title: str, word: Any, process: EngineProcess, deadline_s: float) -> Finding:
    """A finding with the engine's own root cause; `word` is its failure, an unexpected word, or None: silence
    until the deadline."""
    if isinstance(word, Fatal | Rejected):
        failure = process.explain(word.failure)
    elif word is None:
        failure = describe_situation(
            EngineError, f"no answer within {deadline_s:.0f} s of the canary's start"
        )
    else:
        failure = describe_situation(EngineError, f"an unexpected answer: {word!r}")
    cause_text = failure.headline + "".join(f"; caused by {cause}" for cause in failure.causes)
    if not torch.cuda.is_available() and NO_KERNEL.search(cause_text):
        title = (
            "this machine lacks a kernel that the architecture needs, so the target cannot run on it"
            f" either; this says nothing about the target or this vLLM on a GPU: {cause_text}"
        )
        return Finding(id=name, level="fail", title=title, remedy=NO_KERNEL_REMEDY)
    remedy = failure.remedy or f"see the engine's output in {process.log}"
    return Finding(id=name, level="fail", title=f"{title}: {cause_text}", remedy=remedy)
