"""The canary's model: a small random copy of the target's architecture, from its config.json alone.

Kept, because vLLM chooses its kernels and its ways of capturing by them: the architecture and the multimodal
wrapper around it, the hidden size, every width of the attention (heads, head sizes, the ranks of MLA), rotary
embeddings, the routing (groups, experts per token, shared experts, scoring), biases, tied embeddings.

Cut, so that it has at most 4 GiB in bfloat16 and takes a minute on a CPU, too: the layers to 4 (fewer where 4
do not fit; the first dense one and those with experts stay), the experts to max(16, 2 x experts per token) in
whole groups, the intermediate sizes to 128 a device (a block of the usual quantizations), the vocabulary to
4096 tokens. The weights here are plain; `canary_quantization` makes a quantized copy of them.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from eagle3_data.engines.language_model import WRAPPED, make_language_model
from eagle3_data.target import read_model_config, text_config

LAYERS = 4
MAX_BYTES = 4 << 30
VOCABULARY = 4096
INTERMEDIATE_PER_DEVICE = 128
NOT_COPIED = {"model.safetensors.index.json", "config.json", "generation_config.json"}
WEIGHT_SUFFIXES = {".safetensors", ".bin", ".pt", ".pth", ".gguf"}
MAX_COPIED_BYTES = 64 << 20
WEIGHTS_DTYPE = torch.bfloat16


def build_canary(target: Path, directory: Path, tensor_parallel: int, trust_remote_code: bool) -> None:
    """Write the model to `directory`: weights in bfloat16, and what else vLLM reads beside them, from the
    directory `target`.

    Weights keep the residual stream's scale and norms are random, so that each layer, and the state before
    and after the final norm, are unmistakable.
    """
    directory.mkdir(parents=True)
    for file in target.iterdir():  # tokenizer, image preprocessing, remote code
        if (
            file.is_file()
            and file.name not in NOT_COPIED
            and file.suffix not in WEIGHT_SUFFIXES
            and file.stat().st_size <= MAX_COPIED_BYTES
        ):
            shutil.copy(file, directory)
    config = read_model_config(target)
    shrunk, model = _largest_that_fits(config, directory, tensor_parallel, trust_remote_code)
    torch.manual_seed(0)
    model.load_state_dict(
        {name: random_weights(tensor.shape) for name, tensor in model.state_dict().items()}, assign=True
    )
    model.tie_weights()
    model.save_pretrained(directory)
    if text_config(config) is not config:
        weights = directory / "model.safetensors"
        save_file(
            {WRAPPED + name: tensor for name, tensor in load_file(weights).items()},
            weights,
            metadata={"format": "pt"},
        )
    write_config(directory, shrunk)


def _largest_that_fits(
    config: dict[str, Any], directory: Path, tensor_parallel: int, trust_remote_code: bool
) -> tuple[dict[str, Any], Any]:
    """The shrunk config.json with as many layers as fit, and its language model without memory for
    weights."""
    layers = LAYERS
    while True:
        shrunk = shrink(config, tensor_parallel, layers)
        write_config(directory, text_config(shrunk))
        with torch.device("meta"):
            model = make_language_model(directory, trust_remote_code)
        if layers == 1 or size_bytes(model) <= MAX_BYTES:
            return shrunk, model
        layers -= 1


def size_bytes(model: torch.nn.Module) -> int:
    """Of a model's weights as the canary writes them."""
    return sum(tensor.numel() for tensor in model.parameters()) * WEIGHTS_DTYPE.itemsize


def random_weights(shape: torch.Size) -> torch.Tensor:
    """Matrices [..., out, in] that keep the scale of what they multiply; norms and biases between 0.5 and
    1.5."""
    return (
        torch.randn(shape).mul_(shape[-1] ** -0.5).to(WEIGHTS_DTYPE)
        if len(shape) > 1
        else torch.empty(shape, dtype=WEIGHTS_DTYPE).uniform_(0.5, 1.5)
    )


def shrink(config: dict[str, Any], tensor_parallel: int, layers: int = LAYERS) -> dict[str, Any]:
    """A config.json cut as the module's text says; a multimodal wrapper keeps its other parts."""
    text = text_config(config)
    small = _shrink_text(text, tensor_parallel, layers)
    if text is config:
        return small
    name = next(name for name, value in config.items() if value is text)
    return {**_without_quantization(config, small["vocab_size"]), name: small}


def _shrink_text(text: dict[str, Any], tensor_parallel: int, layers: int) -> dict[str, Any]:
    vocabulary = min(text["vocab_size"], VOCABULARY)
    small = _without_quantization(text, vocabulary) | {"vocab_size": vocabulary, "num_hidden_layers": layers}
    for name, value in text.items():
        if isinstance(value, list) and len(value) == text["num_hidden_layers"]:
            small[name] = value[:layers]
        elif "intermediate_size" in name and isinstance(value, int):
            small[name] = min(value, INTERMEDIATE_PER_DEVICE * tensor_parallel)
    if "first_k_dense_replace" in text:
        small["first_k_dense_replace"] = min(text["first_k_dense_replace"], 1)
    return small | _few_experts(text)


def _few_experts(text: dict[str, Any]) -> dict[str, int]:
    names = [name for name in ("n_routed_experts", "num_local_experts", "num_experts") if text.get(name)]
    if not names or not text.get("num_experts_per_tok"):
        return {}
    groups = text.get("n_group") or 1
    few = -(-max(16, 2 * text["num_experts_per_tok"]) // groups) * groups
    return {name: min(text[name], few) for name in names}


def _without_quantization(config: dict[str, Any], vocabulary: int) -> dict[str, Any]:
    """Without quantization, and with special tokens (one id or several) inside the vocabulary."""
    kept = {name: value for name, value in config.items() if name != "quantization_config"}
    for name, value in kept.items():
        if name.endswith("_token_id") and value is not None:
            kept[name] = (
                [min(k, vocabulary - 1) for k in value]
                if isinstance(value, list)
                else min(value, vocabulary - 1)
            )
    return kept


def write_config(directory: Path, config: dict[str, Any]) -> None:
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
