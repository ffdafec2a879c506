"""How far the stored states of a few samples are from those that transformers computes, at every layer: the
one a slot is said to hold, and all others.

The samples go through the model together, each padded at its end, where causal attention cannot see. Each
goes twice: once as it is, and once with an error of the engine's rounding added to the states after every
layer. How far the second comes out from the first is how far rounding alone may take the engine's states: a
router that decides narrowly, or a deep model, lifts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from eagle3_data.errors import InputError
from eagle3_data.progress import Progress
from eagle3_data.store.states import States
from eagle3_data.validation.streaming import StreamedModel

ROUNDING = {"float32": 2.0**-22, "bfloat16": 2.0**-8, "quantized": 2.0**-5}
"""Standard deviation, relative to each number of a state, of the error added after a layer: half a last place
of the engine's dtype, times a few roundings in a layer. `quantized`: activations of 8 bits."""
SHIFTS = (-1, 1)


@dataclass(frozen=True)
class StoredSample:
    """A sample and its states, of which the first `rows` are compared."""

    sample_id: str
    key: str
    token_ids: tuple[int, ...]
    states: States
    rows: int


@dataclass
class SampleErrors:
    """Of one sample with T rows and S slots, in a model of L layers: relative errors |stored - computed| /
    |computed|.

    `errors` [T, S, L + 2]: of each slot against the states before the first layer, after each, and after the
    final norm. `rounding` [T, L + 2]: what rounding alone makes of these. `shifted`: by the number of tokens,
    medians [S] against the slot's own layer at the token before (-1) or after (1).
    """

    sample: StoredSample
    errors: np.ndarray
    rounding: np.ndarray
    shifted: dict[int, np.ndarray] = field(default_factory=dict)


def layer_errors(
    model: StreamedModel, samples: Sequence[StoredSample], layers: Sequence[int], rounding: float
) -> list[SampleErrors]:
    """Of samples whose slots are said to hold the states after `layers`. Raises InputError with the reason
    where transformers cannot compute them."""
    measured = [_Measured(sample, layers, len(model.layers)) for sample in samples]
    noise = torch.Generator(device=model.device).manual_seed(0)

    progress = Progress("reference", "layers", len(model.layers))

    def visit(k: int, states: torch.Tensor) -> torch.Tensor:
        if 0 < k <= len(model.layers):
            progress.add()
        plain, rounded = states.chunk(2)
        for one, theirs, other in zip(measured, plain, rounded, strict=True):
            one.measure(k, theirs, other)
        errors = torch.randn(rounded.shape, generator=noise, device=rounded.device) * rounding
        return torch.cat([plain, rounded * (1 + errors)])

    longest = max(sample.rows for sample in samples)
    padded = [(ids := list(one.token_ids[: one.rows])) + ids[-1:] * (longest - one.rows) for one in samples]
    with progress:
        model.run(torch.tensor(padded).repeat(2, 1), visit)
    return [one.result() for one in measured]


class _Measured:
    def __init__(self, sample: StoredSample, layers: Sequence[int], last: int) -> None:
        self._sample, self._layers = sample, layers
        self._ours: torch.Tensor | None = None
        shape = (sample.rows, last + 2)
        self._errors = np.full((sample.rows, len(layers), last + 2), np.nan, np.float32)
        self._rounding = np.full(shape, np.nan, np.float32)
        self._shifted = {by: np.full(len(layers), np.nan, np.float32) for by in SHIFTS}

    def measure(self, k: int, theirs: torch.Tensor, rounded: torch.Tensor) -> None:
        """Take the states [T', H] after layer k, and the same with rounding."""
        rows = self._sample.rows
        theirs, rounded = theirs[:rows].float(), rounded[:rows].float()
        if self._ours is None:
            values = self._sample.states.values(slice(rows))
            self._ours = torch.from_numpy(np.ascontiguousarray(values)).to(theirs.device)
        if theirs.shape[-1] != self._ours.shape[-1]:
            raise InputError(f"the states of transformers have {theirs.shape[-1]} numbers after layer {k}")
        if not bool(theirs.isfinite().all()):
            raise InputError(f"the states of transformers are not finite after layer {k}")
        self._rounding[:, k] = _numpy(relative_errors(rounded, theirs))
        for slot in range(len(self._layers)):
            self._errors[:, slot, k] = _numpy(relative_errors(self._ours[:, slot], theirs))
        if k in self._layers and rows > 2:
            slot = list(self._layers).index(k)
            before = relative_errors(self._ours[1:, slot], theirs[:-1])
            after = relative_errors(self._ours[:-1, slot], theirs[1:])
            self._shifted[-1][slot], self._shifted[1][slot] = float(before.median()), float(after.median())

    def result(self) -> SampleErrors:
        return SampleErrors(self._sample, self._errors, self._rounding, self._shifted)


def relative_errors(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    """|ours - theirs| / |theirs| of states [..., H]."""
    smallest = torch.finfo(torch.float32).tiny
    return (ours - theirs).norm(dim=-1) / theirs.norm(dim=-1).clamp(min=smallest)


def _numpy(values: torch.Tensor) -> Any:
    return values.cpu().numpy()
