"""The canary's model: a small random copy of the target's architecture, from its config.json alone.

Kept, because vLLM chooses its kernels and its ways of capturing by them: the architecture and the multimodal
wrapper around it, the hidden size, every width of the attention (heads, head sizes, the ranks of MLA), rotary
embeddings, the routing (groups, experts per token, shared experts, scoring), biases, tied embeddings, and a
layer of every kind the target has.

Cut, so that it has at most 4 GiB in bfloat16 and takes a minute on a CPU, too: the layers to 4 (more where
there are more kinds, fewer where 4 do not fit), the experts to max(16, 2 x experts per token) in whole
groups, the intermediate sizes to 128 a device (a block of the usual quantizations), the vocabulary to 4096
tokens, and the towers of other media, through which nothing goes, to 2 layers. The weights here are plain;
`quantization` makes a quantized copy of them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3_data.canary.layers import Kind, choose_layers, cut_layers, layer_kinds, listed_by_layer
from eagle3_data.engines.language_model import WRAPPED, language_model_config, make_language_model
from eagle3_data.errors import InputError
from eagle3_data.records import JsonObject
from eagle3_data.target import read_model_config, text_config

LAYERS = 4
MAX_LAYERS = 10
MAX_BYTES = 4 << 30
VOCABULARY = 4096
INTERMEDIATE_PER_DEVICE = 128
TOWER_LAYERS = 2
TOWER_DEPTHS = ("depth", "num_hidden_layers", "num_layers", "encoder_layers")
NOT_COPIED = {"model.safetensors.index.json", "config.json", "generation_config.json"}
WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
MAX_COPIED_BYTES = 64 << 20
WEIGHTS_DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Blueprint:
    """The small model: its config.json, the model of transformers without memory for weights, and which
    layers of the target it has. `missing`: how many of the target's layers are of a kind that it has not."""

    config: JsonObject
    model: Any
    kept: tuple[int, ...]
    missing: int


def design_canary(target: Path, tensor_parallel: int, trust_remote_code: bool) -> Blueprint:
    """The small model of the checkpoint in `target`. Raises whatever transformers raises where it cannot
    build the architecture, at full size or small."""
    config = read_model_config(target)
    with TemporaryDirectory() as scratch:
        directory = Path(scratch)
        for code in target.glob("*.py"):
            shutil.copy(code, directory)

        def build(whole: JsonObject) -> Any:
            write_config(directory, language_model_config(whole))
            with torch.device("meta"):
                return make_language_model(directory, trust_remote_code)

        full = build(config)
        kinds = layer_kinds(full)
        resolved = full.config.get_text_config(decoder=True)
        listed = listed_by_layer(resolved, len(kinds))
        pad = getattr(resolved, "pad_token_id", None)  # by default outside the vocabulary that is left
        padding = {} if pad is None else {"pad_token_id": pad}
        failure: Exception | None = None
        for count in range(min(max(LAYERS, len(set(kinds))), MAX_LAYERS, len(kinds)), 0, -1):
            found: list[Blueprint] = []
            for kept, lists in _attempts(kinds, listed, count):
                try:
                    shrunk = shrink(config, tensor_parallel, kept, {**padding, **lists})
                    model = build(shrunk)
                    has = set(layer_kinds(model))
                except Exception as error:  # noqa: BLE001  whatever transformers raises: the next may do
                    failure = error
                    continue
                if size_bytes(model) > MAX_BYTES and len(kept) > 1:
                    continue
                found.append(Blueprint(shrunk, model, kept, sum(kind not in has for kind in kinds)))
                if not found[-1].missing:
                    break
            if found:
                return min(found, key=lambda blueprint: blueprint.missing)
        raise failure or InputError(f"{target}: one layer alone takes more than {MAX_BYTES >> 30} GiB")


def _attempts(
    kinds: list[Kind], listed: dict[str, list[Any]], count: int
) -> Iterator[tuple[tuple[int, ...], dict[str, list[Any]]]]:
    """`count` layers to keep, and what to list by layer beside what config.json lists: chosen layers; the
    same where config.json leaves their kinds to a rule ("each sixth"); the first ones, up to the last of
    these kinds."""
    chosen = choose_layers(kinds, count)
    yield chosen, {}
    yield chosen, listed
    wanted = {kinds[n] for n in chosen}
    covering = next(n for n in range(count, len(kinds) + 1) if set(kinds[:n]) >= wanted)
    if covering <= MAX_LAYERS:
        yield tuple(range(covering)), {}


def build_canary(target: Path, directory: Path, tensor_parallel: int, trust_remote_code: bool) -> Blueprint:
    """Write the model to `directory`: weights in bfloat16, and what else vLLM reads beside them, from the
    directory `target`.

    Weights keep the residual stream's scale and norms are random, so that each layer, and the state before
    and after the final norm, are unmistakable.
    """
    blueprint = design_canary(target, tensor_parallel, trust_remote_code)
    directory.mkdir(parents=True)
    for file in target.iterdir():  # tokenizer, image preprocessing, remote code
        if (
            file.is_file()
            and file.name not in NOT_COPIED
            and file.suffix not in WEIGHT_SUFFIXES
            and file.stat().st_size <= MAX_COPIED_BYTES
        ):
            shutil.copy(file, directory)
    torch.manual_seed(0)
    model = blueprint.model
    model.load_state_dict(
        {name: random_weights(tensor) for name, tensor in model.state_dict().items()}, assign=True
    )
    model.tie_weights()
    model.save_pretrained(directory)
    if language_model_config(blueprint.config) is not blueprint.config:
        weights = directory / "model.safetensors"
        save_file(
            {WRAPPED + name: tensor for name, tensor in load_file(weights).items()},
            weights,
            metadata={"format": "pt"},
        )
    write_config(directory, blueprint.config)
    return blueprint


def size_bytes(model: Any) -> int:
    """Of the weights in bfloat16."""
    return sum(parameter.numel() for parameter in model.parameters()) * WEIGHTS_DTYPE.itemsize


def random_weights(like: torch.Tensor) -> torch.Tensor:
    """Matrices [..., out, in] that keep the scale of what they multiply; norms and biases between 0.5 and
    1.5; zeros for whole numbers."""
    if not like.is_floating_point():
        return torch.zeros(like.shape, dtype=like.dtype)
    if like.dim() > 1:
        return torch.randn(like.shape).mul_(like.shape[-1] ** -0.5).to(WEIGHTS_DTYPE)
    return torch.empty(like.shape, dtype=WEIGHTS_DTYPE).uniform_(0.5, 1.5)


def shrink(
    config: JsonObject,
    tensor_parallel: int,
    kept: Sequence[int] = tuple(range(LAYERS)),
    resolved: JsonObject | None = None,
) -> JsonObject:
    """A config.json cut as the module's text says, to the layers `kept`; `resolved` is what to say, of the
    full size, where it leaves that to the architecture's defaults."""
    text = text_config(config)
    small = _shrink_text({**(resolved or {}), **text}, tensor_parallel, kept)
    if text is not config:
        name = next(name for name, value in config.items() if value is text)
        small = {**_without_quantization(config, small["vocab_size"]), name: small}
    if language_model_config(config) is config:
        small |= {name: _shrink_tower(value) for name, value in small.items() if _is_tower(name, value)}
    return small


def _is_tower(name: str, value: Any) -> bool:
    return isinstance(value, dict) and name.endswith("_config") and name not in ("text_config", "llm_config")


def _shrink_tower(tower: JsonObject) -> JsonObject:
    depths = [tower[name] for name in TOWER_DEPTHS if isinstance(tower.get(name), int)]
    if not depths:
        return tower
    small = {**tower, **{name: min(tower[name], TOWER_LAYERS) for name in TOWER_DEPTHS if name in tower}}
    for name, value in tower.items():  # numbers of its layers
        if isinstance(value, list) and "ind" in name and all(isinstance(n, int) for n in value):
            small[name] = [min(n, TOWER_LAYERS - 1) for n in value]
        elif isinstance(value, list) and len(value) == depths[0]:
            small[name] = value[:TOWER_LAYERS]
    return small


def _shrink_text(text: JsonObject, tensor_parallel: int, kept: Sequence[int]) -> JsonObject:
    vocabulary = min(text["vocab_size"], VOCABULARY)
    largest = INTERMEDIATE_PER_DEVICE * tensor_parallel
    small = cut_layers(_without_quantization(text, vocabulary), kept)
    for name, value in small.items():
        if name in ("vocab_size", "vocab_size_per_layer_input"):
            small[name] = vocabulary
        elif "intermediate_size" in name and isinstance(value, int):
            small[name] = min(value, largest)
        elif "intermediate_size" in name and isinstance(value, list):
            small[name] = [min(one, largest) for one in value]
    return small | _few_experts(text)


def _few_experts(text: JsonObject) -> dict[str, int]:
    names = [
        name
        for name in ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
        if isinstance(text.get(name), int) and text[name]
    ]
    active = [
        text.get(name) for name in ("num_experts_per_tok", "num_experts_per_token", "moe_k", "top_k_experts")
    ]
    per_token = next((number for number in active if isinstance(number, int) and number), None)
    if not names or not per_token:
        return {}
    groups = text.get("n_group") or 1
    few = -(-max(16, 2 * per_token) // groups) * groups
    return {name: min(text[name], few) for name in names}


def _without_quantization(config: JsonObject, vocabulary: int) -> JsonObject:
    """Without quantization, and with special tokens (one id or several) inside the vocabulary."""
    kept = {name: value for name, value in config.items() if name != "quantization_config"}
    for name, value in kept.items():
        if name.endswith(("_token_id", "_token_index")) and value is not None:
            kept[name] = (
                [min(k, vocabulary - 1) for k in value]
                if isinstance(value, list)
                else min(value, vocabulary - 1)
            )
    return kept


def write_config(directory: Path, config: JsonObject) -> None:
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
