"""What follows from sizes alone: layer ids, lengths, heads per device, bytes on disk and on the devices.
Standard library only."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_data.errors import StorageError
from eagle3_data.findings import Finding, Level
from eagle3_data.records import JsonObject
from eagle3_data.system.places import check_directory, existing_parent
from eagle3_data.target import max_positions, text_config
from eagle3_data.target.layers import layer_problems

DTYPE_BYTES = {"bfloat16": 2, "float32": 4, "fp8": 1}
SCALE_BYTES = {"fp8": 4}
"""Of a token and slot, beside its states."""
TIGHT_SHARE = 0.1
DEVICE_RESERVE = 0.85
"""Share of a device's memory that weights may take: the rest is for activations, the cache of states and the
runtime."""


@dataclass(frozen=True)
class Workload:
    """What is to be extracted, in numbers."""

    tokens: int
    samples: int
    longest: int
    layers: tuple[int, ...]
    hidden_size: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        """A token's states: layers x hidden size x bytes of the data type, with their scales, and 8 bytes of
        token id."""
        row = self.hidden_size * DTYPE_BYTES[self.dtype] + SCALE_BYTES.get(self.dtype, 0)
        return len(self.layers) * row + 8

    @property
    def size_bytes(self) -> int:
        return self.tokens * self.bytes_per_token


def check_layers(
    layers: Sequence[int], num_hidden_layers: int | None, client_location: str = ""
) -> list[Finding]:
    """Findings for layer ids in vLLM's convention; `num_hidden_layers` None where no model is given."""
    remedy = "set extraction.layers to ascending, distinct ids that end with the last layer"
    return [
        Finding(name, "fail", message, client_location=client_location, remedy=remedy)
        for name, message in layer_problems(layers, num_hidden_layers)
    ]  # fmt: skip


def check_length(needed: int, positions: int) -> list[Finding]:
    """Whether the model has as many positions as the engine will ask for. `positions` 0: the model does not
    say."""
    if not positions or needed <= positions:
        return []
    title = (
        f"the engine needs {needed} positions (samples of up to {needed - 1} tokens and one generated token),"
        f" the model has {positions}; vLLM refuses that"
    )
    return [
        Finding(
            "too-long",
            "fail",
            title,
            "tokenization.max_length",
            remedy=f"set tokenization.max_length to at most {positions - 1}",
        )
    ]


def positions_of(model_config: JsonObject) -> int:
    """Positions vLLM will grant: those of config.json, or what rotary scaling stretches them to; 0 where none
    are given.

    The larger is taken: whether `max_position_embeddings` is stretched already differs between models and
    vLLM versions.
    """
    text = text_config(model_config)
    given = max_positions(text)
    scaling = text.get("rope_scaling") or text.get("rope_parameters") or {}
    if not isinstance(scaling, dict):
        return given
    factor, original = scaling.get("factor"), scaling.get("original_max_position_embeddings") or given
    if not isinstance(factor, int | float) or not isinstance(original, int | float):
        return given
    stretched = original * factor
    return max(given, int(stretched)) if math.isfinite(stretched) else given


def check_tensor_parallel(model_config: JsonObject, tensor_parallel: int) -> list[Finding]:
    """Whether attention heads and vocabulary split over the devices."""
    text = text_config(model_config)
    heads = text.get("num_attention_heads")
    findings = []
    if isinstance(heads, int) and heads % tensor_parallel:
        divisors = [n for n in range(1, heads + 1) if heads % n == 0 and n <= 64]
        title = (
            f"{heads} attention heads do not divide over {tensor_parallel} devices; vLLM refuses the"
            " configuration"
        )
        findings.append(
            Finding(
                "heads-do-not-divide",
                "fail",
                title,
                "extraction.tensor_parallel",
                remedy=f"use one of {', '.join(map(str, divisors))}",
            )
        )
    experts = text.get("n_routed_experts") or text.get("num_experts") or text.get("num_local_experts")
    intermediate = text.get("moe_intermediate_size") or text.get("intermediate_size")
    if experts and isinstance(intermediate, int) and intermediate % tensor_parallel:
        title = (
            f"an expert's intermediate size, {intermediate}, does not divide over {tensor_parallel} devices"
        )
        findings.append(
            Finding(
                "experts-do-not-divide",
                "fail",
                title,
                "extraction.tensor_parallel",
                remedy="use a divisor of it, or expert parallelism",
            )
        )
    return findings


def check_store(workload: Workload, store: str) -> list[Finding]:
    """Whether states can be written to the store, unless all of them may be there already."""
    try:
        check_directory(Path(store), writable=True, setting="extraction.store")
    except StorageError as error:
        if stored_bytes(Path(store), enough=workload.size_bytes) < workload.size_bytes:
            remedy = "make it writable, or set extraction.store to another directory"
            return [Finding("store-unusable", "fail", str(error), "extraction.store", remedy=remedy)]
    return []


def check_copies(workload: Workload, store: str, results: Path, way: str | None) -> list[Finding]:
    """Whether the training set takes room of its own, since its states cannot be links into the store, and
    whether there is as much. `way` is how it can be made (`eagle3_data.system.links`)."""
    if way != "copy":
        return []
    place = existing_parent(results)
    free = shutil.disk_usage(place).free
    size = human_bytes(workload.size_bytes)
    title = (
        f"the training set will hold copies of the states, another {size}: files in {store} cannot be linked"
        f" to {place}, which has {human_bytes(free)} free"
    )
    remedy = (
        "to link instead, put extraction.store on the file system of the results, in a directory you own;"
        f" or keep {size} free for the copies"
    )
    level: Level = "warn" if free >= workload.size_bytes else "fail"
    return [Finding("states-copied", level, title, "extraction.store", remedy=remedy)]


def check_disk(workload: Workload, store: str) -> list[Finding]:
    """Whether the states fit the store's file system; states already in the store count as room made."""
    place = existing_parent(Path(store))
    free = shutil.disk_usage(place).free
    missing = workload.size_bytes - free
    if missing > 0:
        missing -= stored_bytes(Path(store), enough=missing)
    if missing > 0:
        title = (
            f"the states take {human_bytes(workload.size_bytes)} and {place} has {human_bytes(free)} free:"
            f" {human_bytes(missing)} short"
        )
        return [
            Finding(
                "disk-short",
                "fail",
                title,
                "extraction.store",
                remedy="free space, set extraction.store to a larger file system, or extract fewer tokens",
            )
        ]
    if free - workload.size_bytes < TIGHT_SHARE * workload.size_bytes:
        title = (
            f"the states take {human_bytes(workload.size_bytes)} of the {human_bytes(free)} free on {place}"
        )
        return [
            Finding(
                "disk-tight",
                "warn",
                title,
                "extraction.store",
                remedy="make sure that nothing else fills it meanwhile",
            )
        ]
    return []


def check_device_memory(weights_bytes: int, tensor_parallel: int, device_bytes: int | None) -> list[Finding]:
    """Whether a device holds its share of the weights. `device_bytes` None: not known here, nothing is
    found."""
    share = weights_bytes / tensor_parallel
    if device_bytes is None or share <= DEVICE_RESERVE * device_bytes:
        return []
    title = (
        f"each of {tensor_parallel} devices takes {human_bytes(share)} of weights and has"
        f" {human_bytes(device_bytes)}"
    )
    needed = next(
        (n for n in (1, 2, 4, 8, 16, 32, 64) if weights_bytes / n <= DEVICE_RESERVE * device_bytes), None
    )
    remedy = (
        f"set extraction.tensor_parallel to {needed}"
        if needed
        else "use devices with more memory, or a quantized checkpoint"
    )
    level = "fail" if share > device_bytes else "warn"
    return [
        Finding(
            "device-memory-short",
            "fail" if level == "fail" else "warn",
            title,
            "extraction.tensor_parallel",
            remedy=remedy,
        )
    ]


def check_device_count(tensor_parallel: int, given: int) -> list[Finding]:
    """Whether a job was given as many devices as the model is split over. 0: not known (vLLM counts those of
    the machine)."""
    if given in (0, tensor_parallel):
        return []
    title = f"this job has {given} devices and the model is split over {tensor_parallel}"
    remedy = (
        "request as many from the scheduler (`gpu` of extract_pass in profiles/slurm/config.yaml) as"
        " extraction.tensor_parallel"
    )
    if given < tensor_parallel:
        return [Finding("devices-too-few", "fail", title, "extraction.tensor_parallel", remedy=remedy)]
    return [
        Finding(
            "devices-idle",
            "warn",
            f"{title}: {given - tensor_parallel} of them are idle",
            "extraction.tensor_parallel",
            remedy=remedy,
        )
    ]


def stored_bytes(store: Path, enough: int) -> int:
    """Bytes of samples in the store; the count ends once it reaches `enough`."""
    total = 0
    for file in store.rglob("*.safetensors"):
        total += file.stat().st_size
        if total >= enough:
            break
    return total


def human_bytes(size: float) -> str:
    """A size in the largest decimal unit that leaves at least 1."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} PB"
