"""The weights of a checkpoint by the names that transformers' model has for them, read one at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from eagle3_data.engines.language_model import WRAPPED
from eagle3_data.errors import InputError
from eagle3_data.target import weight_files

IN_A_LAYER = re.compile(r"\.\d+\.")
PACKED = re.compile(r"\.(weight_packed|qweight)$")
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
EIGHT_BIT_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
PATHS_TO_THE_LANGUAGE_MODEL = {"model", "language_model", "text_model", "thinker", "backbone"}


def tensor_files(directory: Path) -> dict[str, Path]:
    """The file of each tensor of a checkpoint, by its name. Raises InputError where there are no weights."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        return {
            name: directory / file
            for name, file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items()
        }
    found = {}
    for file in weight_files(directory):
        with safe_open(file, framework="pt") as tensors:
            found.update(dict.fromkeys(tensors.keys(), file))
    return found


class StoredTensors:
    """What a checkpoint holds outside its layers for the parameters of `model`, a model of transformers."""

    def __init__(self, directory: Path, model: Any, wrapped: bool) -> None:
        """`wrapped`: the model is the language model of a wrapper that transformers does not know."""
        self._directory = directory
        self._files = {
            name: file for name, file in tensor_files(directory).items() if not IN_A_LAYER.search(name)
        }
        self._by_model_name = _names_in_model(self._files, model, wrapped)

    def read(self, names: Iterable[str], shape: torch.Size) -> torch.Tensor:
        """The first of the model's tensors `names` that is stored; a quantized one as the bfloat16 values it
        stands for. Raises InputError where none is stored, or not in a form that is understood."""
        names = tuple(names)
        found = next((self._by_model_name[name] for name in names if name in self._by_model_name), None)
        if found is None:
            raise InputError(f"{self._directory} holds no weights for {' or '.join(names)}")
        tensor = self._values(found)
        if tensor.shape != shape:
            raise InputError(
                f"{found} in {self._directory} is {list(tensor.shape)}, the architecture's {names[0]}"
                f" {list(shape)}"
            )
        return tensor

    def _values(self, name: str) -> torch.Tensor:
        stored = self._tensor(name)
        stem = re.sub(r"weight(_packed)?$", "", name)
        scale = next(
            (stem + kind for kind in ("weight_scale", "weight_scale_inv") if stem + kind in self._files), None
        )
        if stored.dtype in FLOATS and scale is None:
            return stored
        if scale and stored.dtype in EIGHT_BIT_FLOATS:
            return _scaled(stored.float(), self._tensor(scale).float())
        if scale and name.endswith("weight_packed") and f"{stem}weight_zero_point" not in self._files:
            from compressed_tensors.compressors import unpack_from_int32

            shape = torch.Size(self._tensor(f"{stem}weight_shape").tolist())
            bits = 32 * stored.shape[1] // shape[1]
            return _scaled(unpack_from_int32(stored, bits, shape).float(), self._tensor(scale).float())
        raise InputError(
            f"{name} in {self._directory} is quantized in a way that is not understood here"
            f" ({str(stored.dtype).removeprefix('torch.')}{', scaled' if scale else ''})"
        )

    def _tensor(self, name: str) -> torch.Tensor:
        with safe_open(self._files[name], framework="pt") as tensors:
            return tensors.get_tensor(name)


def _scaled(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """`values` [out, in] times their scales: one for all, one a row, or one a block."""
    scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
    blocks = [-(-size // count) for size, count in zip(values.shape, scale.shape, strict=True)]
    for dim, block in enumerate(blocks):
        if values.shape[dim] % scale.shape[dim]:
            block = 1 << (block - 1).bit_length()  # the last block is smaller: blocks are powers of two
        scale = scale.repeat_interleave(block, dim)
    return (values * scale[: values.shape[0], : values.shape[1]]).to(torch.bfloat16)


def _names_in_model(stored: Iterable[str], model: Any, wrapped: bool) -> dict[str, str]:
    """By the name of a parameter in `model`, the name of its weights in the checkpoint: as transformers
    renames them when it loads, else where only the path to the language model is another."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightRenaming, rename_source_key

    parameters = dict.fromkeys(name for name, _ in model.named_parameters(remove_duplicate=False))
    renamings = [one for one in get_model_conversion_mapping(model) if isinstance(one, WeightRenaming)]
    own = {
        name: PACKED.sub(".weight", name.removeprefix(WRAPPED) if wrapped else name)
        for name in stored
        if not wrapped or name.startswith(WRAPPED)
    }
    found: dict[str, str] = {}
    for name, asked in own.items():
        renamed, _ = rename_source_key(
            asked, renamings, [], model.base_model_prefix, dict.fromkeys(parameters, True)
        )
        found[renamed] = name
    by_end: dict[str, list[str]] = {}
    for name, asked in own.items():
        by_end.setdefault(_end(asked), []).append(name)
    for parameter in parameters:
        if parameter not in found and len(alike := by_end.get(_end(parameter), [])) == 1:
            found[parameter] = alike[0]
    return found


def _end(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in PATHS_TO_THE_LANGUAGE_MODEL)
