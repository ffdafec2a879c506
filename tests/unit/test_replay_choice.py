"""Which samples are replayed, and what a difference is called."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from eagle3_data.extraction.replay import choose
from eagle3_data.store.states import States
from eagle3_data.validation.differences import describe_difference
from eagle3_data.validation.likeness import TOLERANCES, row_errors, wrong_rows

LAYERS = (2, 4, 5, 8)
TOLERANCE = TOLERANCES["bfloat16"]
T = 150

draw = np.random.default_rng(0)
GOOD = draw.standard_normal((T, len(LAYERS), 32)).astype(np.float32)
"""Independent rows: as unlike as other tokens' states are."""
OTHER = draw.standard_normal(GOOD.shape).astype(np.float32)


def states(values: np.ndarray) -> States:
    return States("F32", np.ascontiguousarray(values).view("<u4"), np.arange(len(values)), {})


def test_the_longest_one_that_crosses_a_step_and_all_lengths_are_chosen() -> None:
    lengths = {f"{n:03d}": n for n in range(1, 401)}
    chosen = choose(lengths, 8, 300, "a")
    assert chosen == choose(dict(reversed(lengths.items())), 8, 300, "a")
    assert chosen != choose(lengths, 8, 300, "b")
    assert len(set(chosen)) == 8
    assert {"400", "301"} <= set(chosen)
    others = sorted(lengths[key] for key in set(chosen) - {"400", "301"})
    for n, length in enumerate(others):
        assert n * 398 / 6 - 2 <= length <= (n + 1) * 398 / 6 + 2, others
    assert choose(lengths, 1, None, "a") == ["400"]
    assert choose(lengths, 0, None, "a") == []
    assert choose({}, 8, None, "a") == []
    assert choose({"a": 5, "b": 3}, 8, 4, "a") == ["b", "a"]


@pytest.mark.parametrize("number", range(1, 9))
def test_a_choice_is_of_the_number_asked_for_whatever_the_lengths(number: int) -> None:
    for samples in range(1, 30):
        lengths = {f"{n}": random.Random(n).choice([1, 1, 7, 700]) for n in range(samples)}
        for step in (None, 6, 700):
            assert len(set(choose(lengths, number, step, "s"))) == min(number, samples)


def judge(stored: np.ndarray) -> str | None:
    """What is said of stored states whose replay is GOOD."""
    errors = row_errors(states(stored), states(GOOD[: len(stored)]))
    wrong = np.stack([wrong_rows(slot, TOLERANCE) for slot in errors.T], axis=1)
    if not wrong.any():
        return None
    found = describe_difference(states(stored), states(GOOD[: len(stored)]), errors, wrong, LAYERS, TOLERANCE)
    assert found.remedy
    return str(found)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 16, 17, 31, 32, 33, T])
def test_rounding_and_single_flips_of_a_router_are_no_difference(length: int) -> None:
    noisy = GOOD[:length] * (1 + 0.02 * draw.standard_normal(GOOD[:length].shape).astype(np.float32))
    assert judge(noisy) is None
    if length > 3:
        noisy[length // 2] *= 1.5
        assert judge(noisy) is None


def exchanged(values: np.ndarray) -> np.ndarray:
    return values[:, [0, 2, 1, 3]]


def rows(first: int, end: int, source: np.ndarray, slot: slice | int = slice(None)) -> Callable:
    def change(values: np.ndarray) -> np.ndarray:
        values[first:end, slot] = source[first:end, slot]
        return values

    return change


def repeated(values: np.ndarray) -> np.ndarray:
    values[64:128] = GOOD[:64]
    return values


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (exchanged, ["slot 1 (layer 4)", "what slot 2 (layer 5) should hold", "wrong layer was captured"]),
        (rows(0, T, OTHER), ["slot 3 (layer 8): 150 of 150 tokens, 0 to 149", "mixed up in the batch"]),
        (rows(0, T, OTHER, 1), ["slot 1 (layer 4)", "wrong layer"]),
        (rows(64, 128, np.zeros_like(OTHER)), ["64 of 150 tokens, 64 to 127", "differ by 100%", "a chunk"]),
        (repeated, ["token 64 has the state of token 0", "a chunk of the sample was lost"]),
        (
            rows(64, 128, 0.3 * OTHER + GOOD),
            ["64 of 150 tokens, 64 to 127", "differ by 30%", "more than rounding"],
        ),
        (rows(40, T, OTHER), ["110 of 150 tokens, 40 to 149", "mixed up in the batch"]),
        (rows(0, 48, OTHER), ["48 of 150 tokens, 0 to 47", "prefix cache"]),
        (lambda values: np.roll(values, 1, axis=0), ["token 0 has the state of token 149", "mixed up"]),
        (lambda values: values * 1.2, ["150 of 150 tokens", "differ by 20%", "more than rounding explains"]),
    ],
)
def test_each_kind_of_difference_is_named(change: Callable, told: list[str]) -> None:
    text = judge(change(GOOD.copy()))
    assert text is not None
    for part in told:
        assert part in text


@pytest.mark.parametrize("length", [1, 2, 3, 4, 16, 40])
def test_a_sample_of_any_length_that_is_anothers_differs(length: int) -> None:
    assert judge(OTHER[:length].copy()) is not None
