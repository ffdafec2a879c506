"""Values of the embedded demo that were carried over into a real run: config/config.yaml is often copied."""

from __future__ import annotations

from eagle3_data.config import Tokenization, TrainingSet
from eagle3_data.findings import Finding

REAL_VOCABULARY = 16_000
"""The demo's targets have at most a few thousand tokens, real ones have more."""
DEMO_DRAFT_VOCABULARY, DEMO_BATCH_TOKENS = 512, 3000


def check_demo_values(
    vocab_size: int, tokenization: Tokenization, training_set: TrainingSet
) -> list[Finding]:
    """`vocab_size` is the target's."""
    if vocab_size < REAL_VOCABULARY:
        return []
    found = []
    if training_set.draft_vocab_size == DEMO_DRAFT_VOCABULARY:
        found.append(
            Finding(
                id="demo-value",
                level="warn",
                title=(
                    f"training_set.draft_vocab_size is the demo's {DEMO_DRAFT_VOCABULARY}; the target has"
                    f" {vocab_size} tokens, and the draft could only propose these few"
                ),
                remedy="leave it out, which chooses the size by the share of trained tokens it covers",
            )
        )
    if tokenization.batches is None and tokenization.batch_tokens == DEMO_BATCH_TOKENS:
        found.append(
            Finding(
                id="demo-value",
                level="warn",
                title=(
                    f"tokenization.batch_tokens is the demo's {DEMO_BATCH_TOKENS}; with real data that"
                    " gives very many batches"
                ),
                remedy="leave it out (200000 is the default)",
            )
        )
    return found
