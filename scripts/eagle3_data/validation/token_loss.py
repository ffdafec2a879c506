"""Token loss: do the last slot's states tell which token comes next?

Of a sample some rows are tested: each gives log-probabilities of all tokens, through the target's own norm
and head. Beside the loss, the cross entropy of the token that really follows, there is the *contrast*: how
much better a row tells its own next token than the other rows of the sample tell it, and than it tells
theirs. Rows of another place or sample have a contrast around 0, however rare or frequent the tokens are; a
trained target's own are nats above. So a sample is held against itself, not only against the run.

A sample that looks weak is looked at closely, row by row: whether over WINDOW rows on end the contrast is
next to nothing and the loss nearer to that of guessing than to the run's. That may also be a text that nobody
can predict (keys, base64, a language the target does not know). So the sample is rejected only if those rows
do tell the tokens of another place, of this sample or of another one: then they are that place's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

ROWS = 32
"""Tested of each sample, one in each of as many equal parts."""
FEWEST_ROWS = 16
"""Of fewer rows nothing can be said."""
FEW = 8
"""Of tested rows on end whose mean contrast says whether a sample looks weak."""
WINDOW = 32
"""Rows on end that decide."""
CLOSELY = 512
"""Rows looked at closely, at most."""
WEAK, NOTHING = 1 / 3, 0.1
"""Parts of the run's median contrast below which a sample looks weak, and below which a contrast is next to
nothing (docs/proofs.md has what right rows of the demo targets give)."""
BELONGING = 0.75
"""Part of the run's median contrast from which rows are those of the place whose tokens they tell."""
TRAINED_CONTRAST = 2.5
"""Nats. Where the run's median is lower, the target hardly predicts these samples, and nothing is said: among
a hundred thousand places, one or the other is told by chance with a contrast of more than 1."""


@dataclass(frozen=True)
class TokenLoss:
    """Means over the tested rows of a sample, in nats, and the least mean contrast of FEW of them on end,
    around row `weakest_row`."""

    loss: float
    contrast: float
    weakest: float
    weakest_row: int
    rows: int

    def close_look(self, tokens: int) -> slice:
        """The rows to look at closely of a sample with so many tokens: all, or those around the weakest."""
        start = max(0, min(self.weakest_row - CLOSELY // 2, tokens - 1 - CLOSELY))
        return slice(start, min(start + CLOSELY, tokens - 1))


def tested_rows(key: str, tokens: int) -> np.ndarray:
    """Ascending rows that have a next token, chosen by the sample's key."""
    rows = tokens - 1
    if rows <= ROWS:
        return np.arange(rows)
    edges = np.linspace(0, rows, ROWS + 1).astype(int)
    return np.random.default_rng(int(key[:16], 16)).integers(edges[:-1], edges[1:])


def token_losses(table: torch.Tensor, next_tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The losses and the contrasts [n] of rows that are followed by `next_tokens` [n]; `table` [n, n] has the
    log-probability that row i gives to the next token of row j. Without another next token among those of the
    other rows, a contrast is 0."""
    following = torch.from_numpy(next_tokens)
    table, others = table.double(), (following[None, :] != following[:, None]).double()
    masked = table * others
    in_row = masked.sum(1) / others.sum(1).clamp(min=1)
    in_column = masked.sum(0) / others.sum(0).clamp(min=1)
    mean = masked.sum() / others.sum().clamp(min=1)
    own = table.diagonal()
    contrasts = torch.where(others.sum(1) > 0, own - in_row - in_column + mean, 0.0)
    return -own.numpy(), contrasts.numpy()


def measure(table: torch.Tensor, rows: np.ndarray, next_tokens: np.ndarray) -> TokenLoss | None:
    """Of the tested `rows` [n] of a sample; None if they are too few."""
    if len(rows) < FEWEST_ROWS:
        return None
    losses, contrasts = token_losses(table, next_tokens)
    few = _means(contrasts, FEW)
    first = int(few.argmin())
    middle = int(rows[first : first + FEW].mean())
    return TokenLoss(float(losses.mean()), float(contrasts.mean()), float(few[first]), middle, len(rows))


@dataclass(frozen=True)
class RunLosses:
    """The medians of a run, and log V."""

    loss: float
    contrast: float
    guessing: float

    @classmethod
    def of(cls, losses: Sequence[TokenLoss], vocab_size: int) -> RunLosses | None:
        if not losses:
            return None
        loss, contrast = np.median([(one.loss, one.contrast) for one in losses], axis=0)
        return cls(float(loss), float(contrast), math.log(vocab_size))

    @property
    def unknown(self) -> str:
        """Why nothing can be said of any sample; empty where something can."""
        if self.contrast >= TRAINED_CONTRAST and self.loss < self.guessing:
            return ""
        return (
            f"the target does not predict these samples' tokens (median loss {self.loss:.2f} nats, guessing"
            f" {self.guessing:.2f}; median contrast {self.contrast:.2f}): it is untrained or of another kind"
            " of text, or the rows of all samples are wrong"
        )

    def looks_weak(self, one: TokenLoss) -> bool:
        return min(one.weakest, one.contrast) < WEAK * self.contrast

    def weak_windows(self, losses: np.ndarray, contrasts: np.ndarray) -> list[slice]:
        """WINDOW rows on end, a few times, that do not tell the next tokens; the weakest first."""
        window = min(WINDOW, len(losses))
        means, mean_losses = _means(contrasts, window), _means(losses, window)
        starts = np.flatnonzero((means < NOTHING * self.contrast) & (mean_losses > self._half_guessing))
        if not len(starts):
            return []
        few = [starts[means[starts].argmin()], starts[0], starts[len(starts) // 2], starts[-1]]
        return [slice(int(start), int(start) + window) for start in dict.fromkeys(few)]

    def belong(self, log_probabilities: torch.Tensor, next_tokens: np.ndarray) -> bool:
        """Whether rows [n, V] tell these next tokens [n], each its own better than the others'. Of a few
        tokens in turn nothing is believed: a target that is lost repeats itself, too."""
        table = log_probabilities[:, torch.from_numpy(next_tokens)]
        losses, contrasts = token_losses(table, next_tokens)
        return bool(
            len(set(next_tokens.tolist())) > len(next_tokens) // 2
            and contrasts.mean() > BELONGING * self.contrast
            and losses.mean() < self._half_guessing
        )

    @property
    def _half_guessing(self) -> float:
        return (self.loss + self.guessing) / 2


def best_place(log_probabilities: torch.Tensor, token_ids: np.ndarray) -> int | None:
    """The row of a sample with these ids [T] from which on the rows [n, V] tell the next tokens best; None if
    the sample is shorter."""
    count = len(log_probabilities)
    if len(token_ids) <= count:
        return None
    next_tokens = torch.from_numpy(np.ascontiguousarray(token_ids[1:]))
    told = log_probabilities[:, next_tokens]
    places = len(next_tokens) - count + 1
    sums = torch.stack([told[row, row : row + places] for row in range(count)]).sum(0)
    return int(sums.argmax())


def _means(values: np.ndarray, window: int) -> np.ndarray:
    return sliding_window_view(values, min(window, len(values))).mean(axis=1)
