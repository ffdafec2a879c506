"""The reference: stored samples beside transformers' own states, from the target's real weights."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from eagle3_data.errors import Eagle3DataError
from eagle3_data.log import say
from eagle3_data.system.memory import available_bytes
from eagle3_data.text import counted
from eagle3_data.validation.judgement import judge, slot_figures
from eagle3_data.validation.layer_errors import ROUNDING, StoredSample, layer_errors
from eagle3_data.validation.reference_cost import LONGEST_S, Forecast, Size, forecast
from eagle3_data.validation.reference_verdict import EngineReference
from eagle3_data.validation.streaming import StreamedModel

EXPERTS_A_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts")


class TooCostlyError(Eagle3DataError):
    """The reference would take more time or memory than it may; nothing was computed."""


@dataclass(frozen=True)
class ReferenceTarget:
    """What stored samples are compared with. `layers` are those of the slots, `dtype` is what the engine
    computes in, `stored_dtype` that of the states; `quantized`: the engine rounds activations to 8 bits."""

    path: Path
    trust_remote_code: bool
    stored_bytes: int
    layers: tuple[int, ...]
    dtype: str
    stored_dtype: str
    quantized: bool


def compare(
    target: ReferenceTarget, extraction_id: str, engines: Sequence[tuple[dict[str, str], list[StoredSample]]]
) -> list[EngineReference]:
    """The verdict on the samples of each kind of engine (the versions of its packages). Raises
    TooCostlyError, and InputError with the reason where transformers cannot compute the target."""
    started = time.monotonic()
    samples = [sample for _, some in engines for sample in some]
    model = StreamedModel(target.path, target.trust_remote_code)
    device, expected = choose_device(size_of(model, target.stored_bytes), samples, len(target.layers))
    tokens = counted(sum(sample.rows for sample in samples), "token")
    say(
        f"reference: {counted(len(samples), 'sample')} ({tokens}) through transformers on the"
        f" {'GPU' if device == 'cuda' else 'CPU'}, layer by layer; expected: {expected}"
    )
    reject_costly(expected, device)
    if device != "cpu":
        model = StreamedModel(target.path, target.trust_remote_code, device)
    rounding = ROUNDING["quantized" if target.quantized else target.dtype]
    compared = layer_errors(model, samples, target.layers, rounding)
    elapsed_s = time.monotonic() - started
    versions_here = {"transformers": transformers.__version__, "torch": str(torch.__version__)}
    verdicts, start = [], 0
    for versions, some in engines:
        own, start = compared[start : start + len(some)], start + len(some)
        faults, undecided = judge(own, target.layers, target.stored_dtype, has_experts(model))
        verdicts.append(
            EngineReference(
                extraction_id=extraction_id,
                versions=versions,
                samples={sample.key: sample.rows for sample in some},
                slots=slot_figures(own, target.layers),
                faults=faults,
                undecided="; ".join(undecided),
                reference_versions=versions_here,
                device=torch.cuda.get_device_name() if device == "cuda" else "CPU",
                elapsed_s=elapsed_s,
                forecast_s=expected.seconds,
            )
        )
    return verdicts


def size_of(model: StreamedModel, stored_bytes: int) -> Size:
    """Of a model of transformers, whose experts are one tensor [experts, ...] for all."""
    chosen = experts_a_token(model)
    numbers, active = [], 0
    for layer in model.layers:
        numbers.append(0)
        for one in layer.parameters():
            numbers[-1] += one.numel()
            share = chosen / one.shape[0] if chosen and one.dim() > 2 and one.shape[0] > chosen else 1.0
            active += int(one.numel() * share)
    hidden_size = model.model.config.get_text_config(decoder=True).hidden_size
    return Size(stored_bytes, sum(numbers), max(numbers), active, hidden_size)


def experts_a_token(model: StreamedModel) -> int:
    """0 of a model without experts."""
    config: Any = model.model.config.get_text_config(decoder=True)
    given = (getattr(config, name, None) for name in EXPERTS_A_TOKEN)
    return next((number for number in given if isinstance(number, int)), 0)


def has_experts(model: StreamedModel) -> bool:
    names = (name for layer in model.layers for name, _ in layer.named_parameters())
    return experts_a_token(model) > 0 or any("experts" in name for name in names)


def choose_device(size: Size, samples: Sequence[StoredSample], slots: int) -> tuple[str, Forecast]:
    """ "cuda" where a GPU has the memory, else "cpu"; with the forecast."""
    tokens = len(samples) * max(sample.rows for sample in samples)
    if torch.cuda.is_available():
        expected = forecast(size, tokens, slots, "cuda", 1)
        if torch.cuda.mem_get_info()[0] >= expected.memory_bytes:
            return "cuda", expected
    return "cpu", forecast(size, tokens, slots, "cpu", torch.get_num_threads())


def reject_costly(expected: Forecast, device: str) -> None:
    """Raises TooCostlyError."""
    if expected.seconds > LONGEST_S:
        raise TooCostlyError(
            f"the reference would take {expected.seconds / 3600:.1f} hours, and is not made above"
            f" {LONGEST_S / 3600:.0f}; more cores or a GPU for the rule prove_target make it faster"
        )
    if device == "cpu" and expected.memory_bytes > (available := available_bytes()):
        raise TooCostlyError(
            f"the reference would take {expected.memory_bytes / 2**30:.1f} GiB of memory, and"
            f" {available / 2**30:.1f} GiB are available; give the rule prove_target more (mem_mb)"
        )
