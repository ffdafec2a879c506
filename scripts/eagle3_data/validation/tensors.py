"""The weights of a checkpoint by the names that transformers' model has for them, read one at a time."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from eagle3_data.engines.language_model import WRAPPED, is_wrapped
from eagle3_data.errors import InputError
from eagle3_data.records import JsonObject
from eagle3_data.target import read_model_config, text_config, weight_files

IN_A_LAYER = re.compile(r"\.\d+\.")
PACKED = re.compile(r"\.(weight_packed|qweight)$")
BESIDE_WEIGHTS = re.compile(
    r"\.(weight_(scale|scale_inv|shape|zero_point|g_idx|global_scale)|(input|output|[qkv])_(global_)?scale"
    r"|qzeros|scales|g_idx)$"
)
"""What quantization stores beside weights."""
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
EIGHT_BIT_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
OPEN_FILES = 4
"""At a time: one layer of a checkpoint rarely lies in more."""
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


class StoredWeights:
    """The values of a checkpoint's weights by the names they have there, whatever they are stored in."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = tensor_files(directory)
        self._block = _block_of(read_model_config(directory))
        self._open: dict[Path, Any] = {}

    def values(self, name: str, device: str = "cpu") -> torch.Tensor:
        """The weights `name`; quantized ones as the bfloat16 values they stand for. Raises InputError where
        they are stored in a form that is not understood."""
        stored = self._tensor(name, device)
        stem = re.sub(r"weight(_packed)?$", "", name)
        scale = next(
            (stem + kind for kind in ("weight_scale", "weight_scale_inv") if stem + kind in self.files), None
        )
        if stored.dtype in FLOATS and scale is None:
            return stored
        if scale and stored.dtype in EIGHT_BIT_FLOATS:
            return _scaled(stored.float(), self._tensor(scale, device).float(), self._block)
        if scale and name.endswith("weight_packed") and f"{stem}weight_zero_point" not in self.files:
            from compressed_tensors.compressors import unpack_from_int32

            shape = torch.Size(self._tensor(f"{stem}weight_shape").tolist())
            bits = 32 * stored.shape[1] // shape[1]
            values = unpack_from_int32(stored, bits, shape)
            return _scaled(values.float(), self._tensor(scale, device).float(), None)
        raise InputError(
            f"{name} in {self.directory} is quantized in a way that is not understood here"
            f" ({str(stored.dtype).removeprefix('torch.')}{', scaled' if scale else ''})"
        )

    def _tensor(self, name: str, device: str = "cpu") -> torch.Tensor:
        """On the CPU it is mapped from the file, and read where it is looked at."""
        file = self.files[name]
        if file not in self._open:
            if len(self._open) == OPEN_FILES:
                self._open.pop(next(iter(self._open)))
            self._open[file] = safe_open(file, framework="pt")
        tensor: torch.Tensor = self._open[file].get_tensor(name)
        return tensor.to(device)


class StoredTensors:
    """What a checkpoint holds outside its layers for the parameters of `model`, a model of transformers."""

    def __init__(self, directory: Path, model: Any) -> None:
        self._weights = StoredWeights(directory)
        names = [name for name in self._weights.files if not IN_A_LAYER.search(name)]
        self._by_model_name = {
            name: source.tensors[0][1]
            for name, source in sources_in_model(names, model, is_wrapped(directory)).items()
            if source.conversion is None
        }

    def read(self, names: Iterable[str], shape: torch.Size) -> torch.Tensor:
        """The first of the model's tensors `names` that is stored; a quantized one as the bfloat16 values it
        stands for. Raises InputError where none is stored, or not in a form that is understood."""
        names = tuple(names)
        directory = self._weights.directory
        found = next((self._by_model_name[name] for name in names if name in self._by_model_name), None)
        if found is None:
            raise InputError(f"{directory} holds no weights for {' or '.join(names)}")
        tensor = self._weights.values(found)
        if tensor.shape != shape:
            raise InputError(
                f"{found} in {directory} is {list(tensor.shape)}, the architecture's {names[0]} {list(shape)}"
            )
        return tensor


def _block_of(config: JsonObject) -> tuple[int, int] | None:
    """Rows and columns of a weight that share a scale, where config.json says so."""
    quantization = config.get("quantization_config") or text_config(config).get("quantization_config") or {}
    groups = (quantization.get("config_groups") or {}).values()
    given = [
        quantization.get("weight_block_size"),
        *((one.get("weights") or {}).get("block_structure") for one in groups),
    ]
    return next((tuple(one) for one in given if isinstance(one, list) and len(one) == 2), None)


def _scaled(values: torch.Tensor, scale: torch.Tensor, block: tuple[int, int] | None) -> torch.Tensor:
    """`values` [out, in] times their scales: one for all, one a row, or one a block, the last of which may be
    smaller."""
    scale = scale.reshape(-1, 1) if scale.dim() < 2 else scale
    for dim, (size, count) in enumerate(zip(values.shape, scale.shape, strict=True)):
        shared = -(-size // count)
        if block and 1 < count == -(-size // block[dim]):
            shared = block[dim]
        elif size % count:
            shared = 1 << (shared - 1).bit_length()  # blocks are powers of two
        scale = scale.repeat_interleave(shared, dim)
    return (values * scale[: values.shape[0], : values.shape[1]]).to(torch.bfloat16)


@dataclass(frozen=True)
class Source:
    """The stored tensors that become one tensor of a model, or a few: each with the pattern under which
    `conversion` of transformers takes it. None: the one tensor is taken as it is."""

    conversion: Any
    tensors: tuple[tuple[str, str], ...]


def sources_in_model(stored: Iterable[str], model: Any, wrapped: bool) -> dict[str, Source]:
    """By the name of a tensor in `model`, what of a checkpoint becomes it: as transformers renames, stacks
    and cuts weights when it loads, or where only the path to the language model is another. Of a conversion
    with several results, only the first is named. `wrapped`: the model is the language model of a wrapper
    that transformers does not know. Tensors that the model does not have are left out."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    known = dict.fromkeys(model.state_dict(), True)
    mapping = get_model_conversion_mapping(model)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    own = {
        name: PACKED.sub(".weight", name.removeprefix(WRAPPED) if wrapped else name)
        for name in stored
        if not BESIDE_WEIGHTS.search(name) and (not wrapped or name.startswith(WRAPPED))
    }
    ends = Counter(map(without_path, own.values()))
    found: dict[str, Source] = {}
    for name, asked in sorted(own.items(), key=lambda item: _in_order(item[1])):
        end = without_path(asked)
        for candidate in (asked, *((end, f"model.{end}") if ends[end] == 1 else ())):
            renamed, pattern = rename_source_key(
                candidate, renamings, converters, model.base_model_prefix, known
            )
            if renamed in known:
                before = found[renamed].tensors if renamed in found and pattern else ()
                if not before and renamed in found and candidate is not asked:
                    break  # what needs no other path has it
                conversion = by_pattern[pattern] if pattern else None
                found[renamed] = Source(conversion, (*before, (pattern or candidate, name)))
                break
    return found


def _in_order(name: str) -> list[tuple[int, int, str]]:
    """Numbers by their size: experts are stacked in this order."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def without_path(name: str) -> str:
    """The name of a weight without what leads to the language model."""
    return ".".join(part for part in name.split(".") if part not in PATHS_TO_THE_LANGUAGE_MODEL)
