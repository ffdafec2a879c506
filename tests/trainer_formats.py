"""Independent readers of the formats of SpecForge and ModelOpt, written from their own dataset classes: what
SpecForge's OfflineManifestReader and ModelOpt's OfflineSupervisedDataset find, in which order, and how they
take it apart."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def read_specforge(directory: Path) -> list[dict[str, torch.Tensor]]:
    """Every .ckpt below `directory`, in the order of absolute paths as text (`list_feature_files`). SpecForge
    demands these keys, a leading axis of 1 in the states, and three auxiliary layers."""
    files = sorted(
        os.path.join(root, name)
        for root, _, names in os.walk(directory.absolute())
        for name in names
        if name.endswith((".ckpt", ".ckpt.gz"))
    )
    found = []
    for file in files:
        raw = torch.load(file, weights_only=True, mmap=True)
        row = {name: raw[name] for name in ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")}
        length = row["input_ids"].numel()
        hidden_size = row["hidden_state"].shape[2]
        assert row["input_ids"].shape == row["loss_mask"].shape == (length,)
        assert row["input_ids"].dtype == row["loss_mask"].dtype == torch.int64
        assert row["hidden_state"].shape == (1, length, hidden_size)
        assert row["aux_hidden_state"].shape == (1, length, 3 * hidden_size)
        found.append(row)
    return found


def read_modelopt(directory: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Every .pt below `directory`, by conversation. What ModelOpt gives its trainer: `hidden_states` must
    be declared as before the norm, else they are taken for normalized."""
    found = {}
    for file in directory.rglob("*.pt"):
        raw = torch.load(file, weights_only=True)
        assert bool(raw.get("hidden_states_prenorm", False))
        length = len(raw["input_ids"])
        assert raw["loss_mask"].shape == (length,)
        assert raw["hidden_states"].shape[0] == raw["aux_hidden_states"].shape[0] == length
        assert raw["hidden_states"].dim() == raw["aux_hidden_states"].dim() == 2
        found[raw["conversation_id"]] = {
            name: raw[name] for name in ("input_ids", "hidden_states", "aux_hidden_states", "loss_mask")
        }
    return found
