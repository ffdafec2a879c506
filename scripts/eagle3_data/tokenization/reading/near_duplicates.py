"""Near duplicates: conversations whose turns share most of their word 5-grams, by MinHash and
locality-sensitive hashing.

Optional (`tokenization.near_duplicates`): only the index comes from a library (datasketch). What is ours is
what counts as the text of a row, and signatures made in the tokenizing processes, since hashing takes
longest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3_data.errors import ConfigError
from eagle3_data.tokenization.reading.messages import joined
from eagle3_data.tokenization.reading.rows import Content, Conversation, FormattedText

PERMUTATIONS = 128
SHINGLE = 5
SCHEME = "affine32"
SHINGLES_AT_ONCE = 1 << 15
"""Each takes 128 hashes until the least are known."""

HIGHEST_OF_INDEX = 0.9
"""The index only proposes candidates, which are then compared; for thresholds near 1 it cannot be built."""


def signature_of(content: Content) -> NDArray[np.uint32]:
    """MinHash [128] of a row's word 5-grams. System prompts, which whole data sets share, do not count; nor
    does case."""
    minhash = _datasketch().MinHash(num_perm=PERMUTATIONS, scheme=SCHEME)
    words = _words(content)
    for start in range(0, max(1, len(words) - SHINGLE + 1), SHINGLES_AT_ONCE):
        shingles = _shingles(words[start : start + SHINGLES_AT_ONCE + SHINGLE - 1])
        minhash.update_batch([" ".join(shingle).encode() for shingle in shingles])
    return np.asarray(minhash.hashvalues, np.uint32)


class NearDuplicates:
    """The signatures seen so far: 3 to 6 kB each, the more the lower the threshold."""

    def __init__(self, threshold: float) -> None:
        """`threshold`: estimated Jaccard index from which on two rows count as near duplicates."""
        self._threshold = threshold
        self._index = _datasketch().MinHashLSH(
            threshold=min(threshold, HIGHEST_OF_INDEX), num_perm=PERMUTATIONS
        )
        self._signatures: list[NDArray[np.uint32]] = []

    def add(self, signature: NDArray[np.uint32]) -> bool:
        """Take note of a row; False if an earlier one is near enough, and then this one is forgotten."""
        minhash = _datasketch().MinHash(num_perm=PERMUTATIONS, scheme=SCHEME, hashvalues=signature)
        if any(
            np.mean(self._signatures[number] == signature) >= self._threshold
            for number in self._index.query(minhash)
        ):
            return False
        self._index.insert(len(self._signatures), minhash)
        self._signatures.append(signature)
        return True


def _words(content: Content) -> list[str]:
    if isinstance(content, Conversation):
        texts = [joined(message["content"]) for message in content.messages if message["role"] != "system"]
        calls = [
            str(call["function"]) for message in content.messages for call in message.get("tool_calls", ())
        ]
        return " ".join((*texts, *calls)).lower().split()
    return (
        content.text.lower().split()
        if isinstance(content, FormattedText)
        else [str(token) for token in content.ids]
    )


def _shingles(words: list[str]) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + SHINGLE]) for start in range(max(1, len(words) - SHINGLE + 1))}


def _datasketch() -> Any:
    try:
        import datasketch
    except ImportError as error:
        raise ConfigError(
            "tokenization.near_duplicates needs the package datasketch, which is not installed; install it,"
            " or leave the key out"
        ) from error
    return datasketch
