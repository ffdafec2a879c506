"""The draft model's vocabulary: the target tokens that are trained most often, and all special ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from eagle3_data.errors import ConfigError

SIZES = (8_000, 16_000, 32_000)
"""What is tried before the target's whole vocabulary."""
WANTED_COVERAGE = 0.995
"""Of the trained tokens: those outside the draft's vocabulary can never be proposed."""


@dataclass(frozen=True)
class DraftVocabulary:
    """`d2t` int64 [N] and `t2d` bool [V] as `draft_vocabulary_map` gives them, both None where the draft has
    the target's whole vocabulary. `coverage` is the share of the trained tokens that are in it."""

    size: int
    coverage: float
    recommended: bool
    d2t: NDArray[np.int64] | None = None
    t2d: NDArray[np.bool_] | None = None


def choose_draft_vocabulary(
    frequencies: NDArray[np.int64], wanted: int | Literal["recommended", "full"], always: Sequence[int]
) -> DraftVocabulary:
    """The vocabulary of size `wanted`; "recommended" is the smallest of SIZES that covers WANTED_COVERAGE of
    the trained tokens, else the whole. Raises ConfigError as `draft_vocabulary_map` does."""
    recommended = wanted == "recommended"
    sizes: tuple[int, ...] = () if wanted == "full" else SIZES if recommended else (int(wanted),)
    for size in sizes:
        if recommended and not len(set(always)) <= size < len(frequencies):
            continue
        d2t, t2d = draft_vocabulary_map(frequencies, size, always)
        covered = float(frequencies[t2d].sum() / max(1, frequencies.sum()))
        if not recommended or covered >= WANTED_COVERAGE:
            return DraftVocabulary(size, covered, recommended, d2t, t2d)
    return DraftVocabulary(len(frequencies), 1.0, recommended)


def draft_vocabulary_map(
    frequencies: NDArray[np.int64], draft_vocab_size: int, always: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The map between draft and target vocabulary, in the format of speculators 0.9.

    `frequencies` [V]: how often each target token is trained; `always`: target ids that must be in, whatever
    their frequency. Returns `d2t` int64 [N], offsets: target id = i + d2t[i], ascending; and `t2d` bool [V]
    with sum N. N = draft_vocab_size. If fewer than N distinct tokens occur, the lowest unused ids fill the
    rest. Raises ConfigError if N exceeds V or cannot hold `always`.
    """
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    target_vocab_size = len(frequencies)
    required = sorted(set(always))
    if draft_vocab_size > target_vocab_size:
        raise ConfigError(
            f"training_set.draft_vocab_size is {draft_vocab_size}, more than the target's vocabulary"
            f" ({target_vocab_size}); choose less or leave it out"
        )
    if draft_vocab_size < len(required):
        raise ConfigError(
            f"training_set.draft_vocab_size is {draft_vocab_size}, but the target has {len(required)} special"
            " and end tokens, which must all be in; choose more"
        )
    if required and not 0 <= required[0] <= required[-1] < target_vocab_size:
        raise ConfigError(
            f"special token ids reach from {required[0]} to {required[-1]}, outside the target's vocabulary"
            f" of {target_vocab_size}"
        )
    counts = {int(token): int(frequencies[token]) for token in np.flatnonzero(frequencies)}
    most = max(counts.values(), default=0)
    counts |= dict.fromkeys(required, most + 1)
    d2t, t2d = build_vocab_mappings_from_distribution(counts, draft_vocab_size, target_vocab_size)
    return d2t.numpy().astype(np.int64), t2d.numpy().astype(np.bool_)


def special_token_ids(tokenizer: Any, stop_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Ids of a tokenizer's special tokens and of `stop_ids`, ascending. Ids the model has no embedding for
    are left out."""
    decoder = getattr(tokenizer, "added_tokens_decoder", {})
    special = {i for i, token in decoder.items() if getattr(token, "special", False)}
    return tuple(
        sorted(i for i in special | set(tokenizer.all_special_ids) | set(stop_ids) if 0 <= i < vocab_size)
    )
