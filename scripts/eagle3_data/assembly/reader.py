"""Reads a finished training set, row by row, with torch and without the rest of the workflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch.utils.data import Dataset

from eagle3_data.assembly.layout import PROVENANCE, STATES, states_name
from eagle3_data.errors import ConfigError, InputError, headline
from eagle3_data.records import JsonObject, read_json
from eagle3_data.store.states import SCALES

REMEDY = "delete the training set and run the same command again, which assembles it again"


class TrainingRow(NamedTuple):
    """One row: T tokens, n auxiliary layers, hidden size H.

    Everything is unshifted: state t belongs to token t, and `loss_mask[t]` says whether token t itself is
    trained, that is predicted from state t - 1.
    """

    token_ids: torch.Tensor
    """int64 [T]"""
    loss_mask: torch.Tensor
    """bool [T]"""
    aux_states: torch.Tensor
    """[T, n, H] of the auxiliary layers, ascending: the draft's inputs"""
    last_state: torch.Tensor
    """[T, H] after the last layer, before the final norm: what the targets are computed from"""


class TrainingSet(Dataset[TrainingRow]):
    """The rows of a training set, in training order.

    >>> rows = TrainingSet("results/mine/training_set")
    >>> token_ids, loss_mask, aux_states, last_state = rows[0]

    `layers` are the auxiliary layer ids and the last, as vLLM counts; `train_rows` is where the validation
    rows begin. States are bfloat16, float32 where they were extracted so; FP8 states are given as the
    bfloat16 they stand for. Rows differ in length, so a DataLoader needs `batch_size=None` or a collate_fn.
    Raises InputError where the directory is no training set, or one without the last layer.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        facts = read_json(self.directory / PROVENANCE, REMEDY)
        self.layers, self.hidden_size = _layers_of(facts, self.directory)
        self.train_rows: int = facts.get("split", {}).get("train", facts["rows"])
        self._rows: Any = None
        self._length: int = facts["rows"]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, row: int) -> TrainingRow:
        """Raises IndexError, and InputError where the row's states are missing or are not the row's."""
        if not -self._length <= row < self._length:
            raise IndexError(f"row {row} of {self._length}")
        row %= self._length
        texts = self._open()[row]
        token_ids, states = self._states(row)
        if not torch.equal(token_ids, texts["input_ids"]):
            raise InputError(
                f"{self.directory / STATES / states_name(row)} holds the states of other tokens than row"
                f" {row}'s; {REMEDY}"
            )
        return TrainingRow(token_ids, texts["loss_mask"].bool(), states[:, :-1], states[:, -1])

    def _open(self) -> Any:
        """The Arrow part. Opened at first use, so that each worker of a DataLoader opens its own."""
        if self._rows is None:
            from datasets import load_from_disk

            self._rows = load_from_disk(str(self.directory)).with_format("torch")
            if len(self._rows) != self._length:
                raise InputError(f"{self.directory} has {len(self._rows)} rows, not {self._length}; {REMEDY}")
        return self._rows

    def _states(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [T] and [T, n + 1, H]."""
        path = self.directory / STATES / states_name(row)
        try:
            with safe_open(path, framework="pt") as file:
                states, token_ids = file.get_tensor("hidden_states"), file.get_tensor("token_ids")
                scales = file.get_tensor(SCALES) if SCALES in file.keys() else None  # noqa: SIM118  no mapping
        except Exception as error:  # safetensors has an error class of its own
            raise InputError(f"{path} cannot be read: {headline(error)}; {REMEDY}") from error
        if scales is not None:
            states = (states.float() * scales).to(torch.bfloat16)
        expected = (len(token_ids), len(self.layers), self.hidden_size)
        if tuple(states.shape) != expected:
            raise InputError(
                f"{path}: states are {list(states.shape)}, expected [tokens, layers, hidden size] ="
                f" {list(expected)}; {REMEDY}"
            )
        return token_ids.long(), states

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None}


def _layers_of(facts: JsonObject, directory: Path) -> tuple[tuple[int, ...], int]:
    """Layer ids and hidden size. Raises InputError, ConfigError for a set without the last layer."""
    try:
        layers, target = tuple(facts["extraction"]["layers"]), facts["target"]
        last, hidden_size = target["num_hidden_layers"], target["hidden_size"]
    except (KeyError, TypeError) as error:
        raise InputError(f"{directory / PROVENANCE} does not say which layers it holds; {REMEDY}") from error
    require_last_layer(layers, last, str(directory))
    return layers, hidden_size


def require_last_layer(layers: tuple[int, ...], last: int, what: str) -> None:
    """Raises ConfigError: trainers take the last slot for the last layer, whatever it is."""
    if len(layers) < 2 or layers[-1] != last:
        raise ConfigError(
            f"{what} holds layers {list(layers)}, and a trainer needs at least one auxiliary layer and, last,"
            f" layer {last}, from which it computes its targets; set extraction.layers"
        )
