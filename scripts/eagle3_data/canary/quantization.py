"""The canary's weights, quantized as the target's are: config.json says how, the names in the checkpoint say
which.

Covered are weights in symmetric integers with a scale for each group or row, packed into int32:
compressed-tensors' pack-quantized, as Kimi-K2.5 has it. The plain copy, which transformers computes with,
gets the values that the quantized weights stand for: so rounding makes no difference, and what remains is the
engine's own.

Not covered, and the canary says so: any other way of storing weights; a target that packs weights which the
canary has in another shape (experts that transformers keeps in one tensor); and all that quantize activations
or the cache, too (DeepSeek-V3's fp8). Through a random model their noise grows to 30 % in four layers, where
a neighbouring layer is off by 50 %: no bound would tell the one from the other for each token.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from eagle3_data.canary.model import write_config
from eagle3_data.errors import InputError
from eagle3_data.records import JsonObject
from eagle3_data.target import read_model_config, text_config
from eagle3_data.validation.tensors import tensor_files

WEIGHTS = "model.safetensors"
PACKED = "_packed"


@dataclass(frozen=True)
class PackedIntegers:
    bits: int
    group_size: int | None
    """Columns that share a scale; None: a whole row."""

    def quantize(self, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Of a weight [out, in]: what is stored, by the last part of its name, and the values [out, in] it
        stands for."""
        from compressed_tensors.compressors import pack_to_int32

        groups = weight.float().unflatten(1, (-1, self.group_size or weight.shape[1]))
        largest = 2 ** (self.bits - 1) - 1
        scales = (groups.abs().amax(-1) / largest).clamp(min=1e-6).to(weight.dtype)
        integers = (groups / scales.float()[..., None]).round().clamp(-largest - 1, largest)
        values = (integers * scales.float()[..., None]).flatten(1).to(weight.dtype)
        packed = pack_to_int32(integers.flatten(1).to(torch.int8), self.bits)
        return {
            "weight_packed": packed,
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }, values


def quantization_of(config: JsonObject) -> JsonObject | None:
    """How the weights of a checkpoint are stored, from its config.json; None for plain ones."""
    return config.get("quantization_config") or text_config(config).get("quantization_config")


def scheme_of(quantization: JsonObject) -> PackedIntegers | None:
    """The scheme a `quantization_config` names; None for one that is not covered."""
    groups = list((quantization.get("config_groups") or {}).values())
    if (
        quantization.get("quant_method") != "compressed-tensors"
        or quantization.get("format") != "pack-quantized"
        or len(groups) != 1
    ):
        return None
    group = groups[0]
    if any(
        (
            group.get("input_activations"),
            group.get("output_activations"),
            quantization.get("kv_cache_scheme"),
            quantization.get("transform_config"),
        )
    ):
        return None
    match group.get("weights"):
        case {"type": "int", "symmetric": True, "num_bits": 4 | 8 as bits, "strategy": "channel"}:
            return PackedIntegers(bits, None)
        case {
            "type": "int",
            "symmetric": True,
            "num_bits": 4 | 8 as bits,
            "strategy": "group",
            "group_size": int(size),
            **rest,
        } if not rest.get("actorder"):
            return PackedIntegers(bits, size)
    return None


def quantize_canary(target: Path, plain: Path, directory: Path) -> bool:
    """Write the canary in `plain` to `directory`, quantized as the checkpoint `target` is. False, and nothing
    written: its way is not covered."""
    config = read_model_config(target)
    scheme = scheme_of(quantization_of(config) or {})
    stored = StoredNames(_names_in(target))
    weights = load_file(plain / WEIGHTS)
    chosen = [name for name in weights if stored.is_packed(name)]
    if (
        not scheme
        or not stored.packed_kinds
        or stored.packed_kinds != {without_numbers(name) for name in chosen}
    ):
        return False
    if not all(
        weights[name].dim() == 2 and weights[name].shape[1] % (scheme.group_size or 1) == 0 for name in chosen
    ):
        return False
    quantized = dict(weights)
    for name in chosen:
        parts, values = scheme.quantize(quantized.pop(name))
        quantized |= {name.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
        weights[name] = values
    shutil.copytree(plain, directory)
    save_file(weights, plain / WEIGHTS, metadata={"format": "pt"})
    save_file(quantized, directory / WEIGHTS, metadata={"format": "pt"})
    _restore_quantization(config, directory)
    return True


def _names_in(checkpoint: Path) -> Iterable[str]:
    """Names of all tensors of a checkpoint; none where it is a config.json alone."""
    try:
        return tensor_files(checkpoint)
    except InputError:
        return ()


class StoredNames:
    """What a checkpoint has of a weight. The canary's first layers may be of a kind that the target has only
    further up: a name that the target lacks is therefore looked up in its other layers."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = set(names)
        self.packed_kinds = {
            without_numbers(name.removesuffix(PACKED)) for name in self._names if name.endswith(PACKED)
        }
        """Weights stored in packed integers, in whichever layer."""

    def is_packed(self, name: str) -> bool:
        """Whether the weight `name` (which ends with "weight") is stored in packed integers."""
        packed = f"{name}{PACKED}"
        if name in self._names or packed in self._names:
            return packed in self._names
        return without_numbers(name) in self.packed_kinds


def without_numbers(name: str) -> str:
    """A tensor's name whatever its layer and expert."""
    return re.sub(r"\.\d+(?=\.)", ".*", name)


def _restore_quantization(target_config: JsonObject, directory: Path) -> None:
    """Put the target's quantization into the canary's config.json, where the target has it."""
    config = read_model_config(directory)
    outer = target_config.get("quantization_config")
    (config if outer else text_config(config))["quantization_config"] = outer or quantization_of(
        target_config
    )
    write_config(directory, config)
