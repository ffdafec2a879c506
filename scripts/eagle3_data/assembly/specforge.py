"""The training set in SpecForge's offline format (sgl-project/SpecForge, 2026-08).

<side>/rows_<n>-<n+2000>/data_<row>.ckpt   torch.save of input_ids, loss_mask int64 [T], hidden_state
                                           [1, T, H] AFTER the final norm, aux_hidden_state [1, T, 3H]
vocab_mapping/vocab_mapping.pt             d2t int64 [N] offsets, t2d bool [V]
train.yaml, draft.json                     for `specforge train --config`

SpecForge counts layers from 0 and takes the state after them: its id k is our k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.assembly.reader import TrainingRow
from eagle3_data.errors import ConfigError
from eagle3_data.records import JsonObject

AUXILIARY_LAYERS = 3
NORM_ROWS = 4096
"""Rows whose states are in float32 at a time."""


@dataclass
class SpecForge:
    """`target` is the checkpoint's directory, whose final norm is applied."""

    name = "specforge"
    suffix = ".ckpt"

    target: Path
    trust_remote_code: bool = False
    _head: Any = field(default=None, repr=False)

    def open(self) -> None:
        """Raises InputError where the architecture's final norm cannot be computed."""
        from eagle3_data.validation.head import read_head

        self._head = read_head(self.target, self.trust_remote_code)

    def contents(self, row: TrainingRow, sample_id: str) -> dict[str, Any]:
        import torch

        states = row.last_state
        normalized = [self._head.normalized(part).to(states.dtype) for part in states.split(NORM_ROWS)]
        return {
            "input_ids": row.token_ids,
            "loss_mask": row.loss_mask.long(),
            "hidden_state": torch.cat(normalized)[None].clone(),
            "aux_hidden_state": row.aux_states.flatten(1)[None].contiguous().clone(),
        }


def require_three(layers: tuple[int, ...]) -> None:
    """Raises ConfigError unless there are exactly three auxiliary layers beside the last."""
    if len(layers) != AUXILIARY_LAYERS + 1:
        raise ConfigError(
            f"SpecForge trains on exactly {AUXILIARY_LAYERS} auxiliary layers, and extraction.layers has"
            f" {len(layers) - 1} before the last ({list(layers)}); take specforge out of"
            " training_set.formats, or extract three"
        )


def write_vocabulary(directory: Path, d2t: np.ndarray, t2d: np.ndarray) -> None:
    """`d2t` int64 [N] offsets, `t2d` bool [V]."""
    import torch

    path = directory / "vocab_mapping/vocab_mapping.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"d2t": torch.from_numpy(d2t), "t2d": torch.from_numpy(t2d)}, path)


def layer_ids(layers: tuple[int, ...]) -> list[int]:
    """The auxiliary layers as SpecForge counts them."""
    return [layer - 1 for layer in layers[:-1]]


def draft_config(model: JsonObject, layers: tuple[int, ...], draft_vocab_size: int) -> JsonObject:
    """config.json of a draft of one Llama layer for a target whose language model's config is `model`. Where
    the target's attention is of another kind (MLA), the draft gets plain attention with heads of 128."""
    hidden_size = model["hidden_size"]
    plain = "kv_lora_rank" not in model and "num_key_value_heads" in model
    heads = model["num_attention_heads"] if plain else max(1, hidden_size // 128)
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": hidden_size,
        "intermediate_size": model.get("intermediate_size", 4 * hidden_size),
        "num_attention_heads": heads,
        "num_key_value_heads": model["num_key_value_heads"] if plain else heads,
        "head_dim": model.get("head_dim") or hidden_size // heads if plain else 128,
        "hidden_act": "silu",
        "max_position_embeddings": model.get("max_position_embeddings", 4096),
        "rms_norm_eps": model.get("rms_norm_eps", 1e-5),
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": model["vocab_size"],
        "draft_vocab_size": draft_vocab_size,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": layer_ids(layers)},
    }
