"""Checkpoints with weights as quantization tools store them, and the values they stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3_data.canary.quantization import PackedIntegers

Stored = tuple[dict[str, torch.Tensor], torch.Tensor]
"""Of a weight: what is stored, by the last part of its name, and the values [out, in] it stands for."""
INT4: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "group_0": {
            "weights": {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": 32,
            }
        }
    },
}
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [32, 32]}
FP8_PER_TENSOR: dict[str, Any] = {"quant_method": "fp8", "activation_scheme": "dynamic"}
LINEAR = re.compile(r"layers\.\d+\..*(proj\w*|gate|fc\d?)\.weight$")


def int4(weight: torch.Tensor) -> Stored:
    return PackedIntegers(4, 32).quantize(weight)


def fp8_blocks(weight: torch.Tensor, block: int = 32) -> Stored:
    rows, columns = (-(-size // block) for size in weight.shape)
    padded = torch.zeros(rows * block, columns * block)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    blocks = padded.reshape(rows, block, columns, block)
    scale = (blocks.abs().amax((1, 3)) / 448).clamp(min=1e-6)
    full = scale.repeat_interleave(block, 0).repeat_interleave(block, 1)[: weight.shape[0], : weight.shape[1]]
    stored = (weight.float() / full).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale_inv": scale}, (stored.float() * full).to(torch.bfloat16)


def fp8_per_tensor(weight: torch.Tensor) -> Stored:
    scale = weight.abs().max().float() / 448
    stored = (weight.float() / scale).to(torch.float8_e4m3fn)
    return {"weight": stored, "weight_scale": scale}, (stored.float() * scale).to(torch.bfloat16)


def quantize(source: Path, plain: Path, quantized: Path, how: Callable[[torch.Tensor], Stored]) -> None:
    """Write the weights of `source`, linear ones of its layers quantized, and the same with the values they
    stand for."""
    values, stored = {}, {}
    for name, weight in load_file(source).items():
        if LINEAR.search(name) and weight.dim() == 2 and not name.endswith("mlp.gate.weight"):
            parts, values[name] = how(weight.to(torch.bfloat16))
            stored |= {name.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
        else:
            values[name] = stored[name] = weight
    for path, tensors in ((plain, values), (quantized, stored)):
        save_file({name: one.contiguous() for name, one in tensors.items()}, path, metadata={"format": "pt"})
