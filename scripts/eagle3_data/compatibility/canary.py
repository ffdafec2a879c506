"""Stage B, the canary: before the target is loaded, a tiny random model of its architecture goes through the same engine.

About a minute on tiny models. What it proves on the pass's own devices, with the pass's own engine arguments: the engine
starts, every sample comes back, as itself, whole, finite; each captured layer is the layer that was asked for (against a
plain forward pass of transformers); chunks and shared prefixes change nothing; the last state gives the greedy token.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from eagle3_data.compatibility.findings import Finding
from eagle3_data.engines.base import EngineSettings, Extracted, Fatal, Ready, Rejected, Request
from eagle3_data.engines.transformers import WRAPPED, ReferenceModel, make_language_model
from eagle3_data.errors import EngineError, describe_situation
from eagle3_data.extraction.engine_log import with_root_cause
from eagle3_data.extraction.engine_process import EngineProcess
from eagle3_data.head import read_head
from eagle3_data.states import number_problems, open_states, structure_problems
from eagle3_data.target import read_model_config, text_config

LAYERS = 4
MAX_BATCHED_TOKENS = 128
LENGTHS = (1, 7, 63, 64, 65, 300)
"""Uneven, around the usual block sizes, and one longer than what the canary's engine computes in one step."""
SHARED_PREFIX = 40
MAX_MEDIAN_ERROR = {"bfloat16": 0.1, "float32": 1e-3}
"""Of a layer's states over all tokens, relative to transformers in float32. A neighbouring layer is off by 0.5 and more."""
WRONG_TOKEN_ERROR = {"bfloat16": 0.4, "float32": 1e-2}
MAX_WRONG_TOKENS = 0.25
"""Part of a sample's tokens that may be off so far: in bfloat16 a close decision of a random router flips now and then, for
single tokens; a lost chunk, another sample or another layer is wrong everywhere."""
FEW_TOKENS = 4
"""A shorter sample is not judged by its part of wrong tokens."""
WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
WEIGHT_INDEXES = {"model.safetensors.index.json", "config.json"}
MAX_COPIED_BYTES = 64 << 20
ANSWER_TIMEOUT_S = 300.0


def shrink(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config.json with 4 layers and few experts; widths, attention and routing unchanged."""
    text = dict(text_config(config))
    text["num_hidden_layers"] = LAYERS
    text.pop("quantization_config", None)
    experts, top_k = text.get("n_routed_experts") or text.get("num_local_experts") or text.get("num_experts"), text.get("num_experts_per_tok")
    if experts and top_k:
        groups = text.get("n_group") or 1
        few = min(experts, -(-max(16, 2 * top_k) // groups) * groups)
        text.update({name: few for name in ("n_routed_experts", "num_local_experts", "num_experts") if text.get(name)})
    if "first_k_dense_replace" in text:
        text["first_k_dense_replace"] = min(text["first_k_dense_replace"], 1)
    if isinstance(text.get("layer_types"), list):
        text["layer_types"] = text["layer_types"][:LAYERS]
    return text


def build_canary(target: Path, directory: Path, trust_remote_code: bool) -> None:
    """Write a random model of the shrunk configuration, inside the target's own multimodal wrapper where it has one. Weights
    keep the residual stream's scale and norms are random, so that each layer, and the state before and after the final
    norm, are unmistakable."""
    directory.mkdir(parents=True)
    config = read_model_config(target)
    wrapper = config if text_config(config) is not config else None
    for file in target.iterdir():  # tokenizer, image preprocessing, remote code: whatever vLLM wants to read beside the weights
        if file.is_file() and file.name not in WEIGHT_INDEXES and file.suffix not in WEIGHT_SUFFIXES and file.stat().st_size <= MAX_COPIED_BYTES:
            shutil.copy(file, directory)
    shrunk = shrink(config)
    write_config(directory, shrunk)
    torch.manual_seed(0)
    model = make_language_model(directory, trust_remote_code)
    with torch.no_grad():
        for tensor in [*model.parameters(), *(buffer for name, buffer in model.named_buffers() if name.endswith("bias"))]:
            if tensor.ndim > 1:
                tensor.normal_(std=tensor.shape[-1] ** -0.5)
            else:
                tensor.uniform_(0.5, 1.5)
    model.to(torch.bfloat16).save_pretrained(directory)
    write_config(directory, {**wrapper, "text_config": shrunk} if wrapper else shrunk)
    if wrapper:
        weights = directory / "model.safetensors"
        save_file({WRAPPED + name: tensor for name, tensor in load_file(weights).items()}, weights, metadata={"format": "pt"})


def write_config(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")


def prompts(vocab_size: int) -> list[tuple[int, ...]]:
    generator = np.random.default_rng(0)
    plain = [tuple(generator.integers(0, vocab_size, length).tolist()) for length in LENGTHS]
    forked = plain[-1][:SHARED_PREFIX] + tuple(generator.integers(0, vocab_size, 30).tolist())
    return [*plain, forked]


@dataclass(frozen=True)
class Answer:
    request: Request
    greedy_token: int


def run_canary(settings: EngineSettings, work: Path, log: Path) -> list[Finding]:
    """Build the canary below `work`, extract from it, check it. `settings` are the pass's own. Returns what is wrong."""
    shutil.rmtree(work, ignore_errors=True)
    try:
        build_canary(Path(settings.model_path), work / "model", settings.trust_remote_code)
        config = text_config(read_model_config(work / "model"))
        (work / "states").mkdir()
        mine = replace(
            settings,
            model_path=str(work / "model"),
            layers=tuple(range(1, LAYERS + 1)),
            max_length=max(LENGTHS),
            states_root=str((work / "states").resolve()),
            arguments=_canary_arguments(settings),
        )
        requests = [Request(f"{n:02d}", ids, f"{mine.states_root}/{n:02d}.safetensors") for n, ids in enumerate(prompts(config["vocab_size"]))]
        answers = _extract(mine, requests, log)
        if isinstance(answers, Finding):
            return [answers]
        return check(mine, answers, config["hidden_size"])
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _canary_arguments(settings: EngineSettings) -> dict[str, Any]:
    small = {"max_num_batched_tokens": MAX_BATCHED_TOKENS, "max_num_seqs": 8} if "vllm" in settings.engine else {}
    return {**settings.arguments, **small}


def _extract(settings: EngineSettings, requests: list[Request], log: Path) -> list[Answer] | Finding:
    process = EngineProcess(settings, log)
    try:
        word = process.receive(ANSWER_TIMEOUT_S)
        if not isinstance(word, Ready):
            return _failed("canary-engine-start", "the engine does not start with a tiny model of the target's architecture", word, log)
        for request in requests:
            process.send(request)
        waiting = {request.key: request for request in requests}
        answers = []
        while waiting:
            word = process.receive(ANSWER_TIMEOUT_S)
            if not isinstance(word, Extracted) or word.key not in waiting:
                return _failed("canary-extraction", "the engine does not extract from a tiny model of the target's architecture", word, log)
            answers.append(Answer(waiting.pop(word.key), word.greedy_token))
        process.close()
        return answers
    finally:
        process.kill()


def _failed(name: str, title: str, word: Any, log: Path) -> Finding:
    failure = (
        word.failure if isinstance(word, Fatal | Rejected) else describe_situation(EngineError, f"no answer within {ANSWER_TIMEOUT_S:.0f} s; got {word!r}")
    )
    failure = with_root_cause(failure, log)
    causes = "".join(f"; caused by {cause}" for cause in failure["causes"])
    return _finding(name, f"{title}: {failure['class']}: {failure['message']}{causes}", failure.get("remedy") or f"see the engine's output in {log}")


def _finding(name: str, title: str, remedy: str) -> Finding:
    return Finding(id=name, level="fail", title=title, remedy=remedy)


def check(settings: EngineSettings, answers: list[Answer], hidden_size: int) -> list[Finding]:
    """Every assertion about the canary's states, each with its own finding id."""
    model = Path(settings.model_path)
    head = read_head(model)
    reference = ReferenceModel(settings.model_path, torch.float32, settings.trust_remote_code)
    findings: list[Finding] = []
    all_errors: list[torch.Tensor] = []
    remedy = "this vLLM build captures wrong states for this architecture on these devices; use another vLLM version, or the transformers engine"
    for answer in answers:
        ids = answer.request.token_ids
        place = f"canary sample of {len(ids)} tokens"
        states = open_states(Path(answer.request.states_path))
        problems = structure_problems(states, ids, len(settings.layers), hidden_size, settings.dtype) or number_problems(states)
        if problems:
            findings += [_finding(f"canary-{name}", f"{place}: {message}", remedy) for name, message in problems]
            continue
        ours = torch.from_numpy(states.values().copy())
        theirs, _ = reference.states(ids, settings.layers)
        errors = (ours - theirs).norm(dim=2) / theirs.norm(dim=2)  # [tokens, layers]
        all_errors.append(errors)
        wrong = (errors > WRONG_TOKEN_ERROR[settings.dtype]).float().mean(dim=0)
        for slot, layer in enumerate(settings.layers):
            if len(ids) >= FEW_TOKENS and wrong[slot] > MAX_WRONG_TOKENS:
                near = min(range(len(settings.layers)), key=lambda k: float((ours[:, slot] - theirs[:, k]).norm()))
                told = f"; they are nearest to those after layer {settings.layers[near]}" if near != slot else ""
                title = f"{place}, layer {layer}: the states of {float(wrong[slot]):.0%} of the tokens are not those of transformers{told}"
                findings.append(_finding("canary-parity", title, remedy))
        if head.disagreements(ours[-1:, -1], torch.tensor([answer.greedy_token])):
            findings.append(_finding("canary-greedy-token", f"{place}: the last state does not give the engine's greedy token {answer.greedy_token}", remedy))
    if all_errors:
        for layer, median in zip(settings.layers, torch.cat(all_errors).median(dim=0).values.tolist(), strict=True):
            if median > MAX_MEDIAN_ERROR[settings.dtype]:
                findings.append(_finding("canary-parity", f"layer {layer}: median relative error {median:.3f} against transformers", remedy))
    return findings
