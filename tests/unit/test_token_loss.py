"""Token loss rejects a sample only where its rows are another place's; texts that nobody predicts pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eagle3_data.validation.token_loss import WINDOW, RunLosses, best_place, token_losses

VOCAB, LENGTH = 200, 120
RUN = RunLosses(loss=1.0, contrast=5.0, guessing=float(np.log(VOCAB)))


def told(next_tokens: np.ndarray, confidence: float = 6.0) -> torch.Tensor:
    """Log-probabilities [n, V] of rows that expect these tokens."""
    logits = torch.zeros(len(next_tokens), VOCAB)
    logits[torch.arange(len(next_tokens)), torch.from_numpy(next_tokens)] = confidence
    return logits.log_softmax(-1)


def text(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCAB, LENGTH)


def weak(rows: torch.Tensor, token_ids: np.ndarray) -> list[slice]:
    following = token_ids[1:]
    return RUN.weak_windows(*token_losses(rows[:, torch.from_numpy(following)], following))


def test_rows_that_tell_their_next_tokens_are_not_weak() -> None:
    ids = text(1)
    assert weak(told(ids[1:]), ids) == []


@pytest.mark.parametrize("shift", [-7, -1, 1, 40])
def test_rows_shifted_in_time_are_weak_and_known_by_their_place(shift: int) -> None:
    ids = text(1)
    rows = told(np.roll(ids[1:], shift))
    windows = weak(rows, ids)
    assert windows
    at = best_place(rows[40:72], ids)
    assert at == 40 - shift
    assert RUN.belong(rows[40:72], ids[at + 1 : at + 1 + WINDOW])


def test_a_chunk_of_another_sample_is_known_by_its_place_there() -> None:
    ids, other = text(1), text(2)
    rows = told(ids[1:])
    rows[30:80] = told(other[31:81])
    (first, *_) = weak(rows, ids)
    assert 30 - WINDOW < first.start < 80
    inner = rows[40:72]
    assert best_place(inner, other) == 40
    assert RUN.belong(inner, other[41:73])
    own = best_place(inner, ids)
    assert own is not None and not RUN.belong(inner, ids[own + 1 : own + 1 + WINDOW])


@pytest.mark.parametrize("kind", ["nothing expected", "always the same expected", "of a third text"])
def test_rows_that_tell_nobodys_tokens_are_weak_and_belong_nowhere(kind: str) -> None:
    """A text that the target cannot predict looks like this: it is no reason to reject right states."""
    ids, other = text(1), text(2)
    rows = {
        "nothing expected": told(ids[1:], 0.0),
        "always the same expected": told(np.full(LENGTH - 1, 7)),
        "of a third text": told(text(3)[1:]),
    }[kind]
    assert weak(rows, ids)
    for window in weak(rows, ids):
        for tokens in (ids, other, np.full(LENGTH, 7), np.arange(LENGTH)):
            at = best_place(rows[window], tokens)
            assert at is not None
            assert not RUN.belong(rows[window], tokens[at + 1 : at + 1 + WINDOW])


def test_a_text_of_one_token_only_has_no_contrast_and_belongs_nowhere() -> None:
    ids = np.full(LENGTH, 3)
    rows = told(np.full(LENGTH - 1, 5))
    windows = weak(rows, ids)
    assert windows
    assert not RUN.belong(rows[windows[0]], ids[1 : 1 + WINDOW])


def test_a_sample_that_is_too_short_has_no_place() -> None:
    assert best_place(told(text(1)[1:33]), text(2)[:20]) is None
