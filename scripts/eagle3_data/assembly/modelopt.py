"""The training set in the offline format of NVIDIA ModelOpt (Model-Optimizer, 2026-08).

<side>/rows_<n>-<n+2000>/data_<row>.pt   torch.save of input_ids, loss_mask int64 [T], hidden_states [T, H]
                                         before the final norm and hidden_states_prenorm True,
                                         aux_hidden_states [T, n * H], conversation_id
vocabulary/d2t.pt                        int64 [N] offsets

ModelOpt takes every .pt below the folder it is given for a row, and has no offline validation: give it
`train`. It counts layers from 0 and takes the state after them: its id k is our k + 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.assembly.reader import TrainingRow


@dataclass
class ModelOpt:
    name = "modelopt"
    suffix = ".pt"

    def open(self) -> None:
        """Nothing is needed."""

    def contents(self, row: TrainingRow, sample_id: str) -> dict[str, Any]:
        return {
            "input_ids": row.token_ids,
            "hidden_states": row.last_state.contiguous().clone(),
            "aux_hidden_states": row.aux_states.flatten(1).contiguous().clone(),
            "loss_mask": row.loss_mask.long(),
            "conversation_id": sample_id,
            "hidden_states_prenorm": True,
        }


def write_vocabulary(directory: Path, d2t: np.ndarray) -> None:
    """`d2t` int64 [N] offsets."""
    import torch

    path = directory / "vocabulary/d2t.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.from_numpy(d2t), path)
