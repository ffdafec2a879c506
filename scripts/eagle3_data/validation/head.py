"""The target's final norm and lm_head, read from its checkpoint; nothing else is loaded.

With them the last stored state of a sample must give the greedy token the engine reported: proof that the
last slot is the residual stream after the last layer, before the final norm, at the last position.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open

from eagle3_data.errors import InputError
from eagle3_data.target import read_model_config, text_config, weight_files

NORMS = ("model.norm.weight", "language_model.model.norm.weight", "model.language_model.norm.weight")
HEADS = ("lm_head.weight", "language_model.lm_head.weight", "model.lm_head.weight")
EMBEDDINGS = (
    "model.embed_tokens.weight",
    "language_model.model.embed_tokens.weight",
    "model.language_model.embed_tokens.weight",
)

TIE_RELATIVE = 2.0**-6
"""The engine computes logits in its own dtype: in bfloat16 (8 bits of precision) two logits this close,
relative to the largest magnitude, may change places."""


@dataclass(frozen=True)
class Head:
    """RMS norm weight [H] and lm_head [V, H], float32."""

    norm: torch.Tensor
    weight: torch.Tensor
    epsilon: float

    def normalized(self, states: torch.Tensor) -> torch.Tensor:
        """States [N, H] after the final norm."""
        return states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.epsilon) * self.norm

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """float32 logits [N, V] of states [N, H] before the final norm."""
        return self.normalized(states) @ self.weight.T

    def disagreements(self, states: torch.Tensor, greedy: torch.Tensor) -> list[int]:
        """Indices n where `greedy` [N] is neither the arg max of the logits of `states` [N, H] nor within
        rounding of it."""
        logits = self.logits(states)
        best = logits.max(dim=-1).values
        reported = logits.gather(1, greedy[:, None])[:, 0]
        margin = TIE_RELATIVE * logits.abs().max(dim=-1).values
        return [int(n) for n in torch.nonzero(best - reported > margin)[:, 0]]


def read_head(directory: Path) -> Head:
    """Raises InputError where the checkpoint has no final RMS norm or lm_head under a known name."""
    config = text_config(read_model_config(directory))
    files = tensor_files(directory)
    tied = bool(config.get("tie_word_embeddings"))
    return Head(
        norm=_first(directory, files, NORMS).float(),
        weight=_first(directory, files, (*HEADS, *EMBEDDINGS) if tied else HEADS).float(),
        epsilon=float(config.get("rms_norm_eps", 1e-6)),
    )


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


def _first(directory: Path, files: dict[str, Path], names: tuple[str, ...]) -> torch.Tensor:
    for name in names:
        if name in files:
            with safe_open(files[name], framework="pt") as tensors:
                return tensors.get_tensor(name)
    raise InputError(
        f"{directory} has none of the tensors {', '.join(names)}; the greedy-token proof needs the final norm"
        " and lm_head"
    )
