"""The demo's own values are no fault of the demo, and worth a word in a real run."""

from __future__ import annotations

import pytest

from eagle3_data.compatibility.run.demo_values import check_demo_values
from eagle3_data.config import Tokenization, TrainingSet
from eagle3_data.findings import IDS

DEMO = Tokenization(batch_tokens=3000), TrainingSet(draft_vocab_size=512)


def test_the_demos_values_are_named_where_they_meet_a_real_target() -> None:
    draft, batches = check_demo_values(163_840, *DEMO)
    assert draft.level == batches.level == "warn"
    assert "draft_vocab_size is the demo's 512; the target has 163840 tokens" in draft.title
    assert "batch_tokens is the demo's 3000" in batches.title
    assert {draft.id, batches.id} <= IDS


@pytest.mark.parametrize(
    ("vocab_size", "tokenization", "training_set"),
    [
        (2048, *DEMO),
        (163_840, Tokenization(), TrainingSet()),
        (163_840, Tokenization(batches=10, batch_tokens=3000), TrainingSet(draft_vocab_size=32_000)),
    ],
    ids=["demo", "defaults", "chosen"],
)
def test_nothing_is_said_of_other_values_or_of_the_demo(
    vocab_size: int, tokenization: Tokenization, training_set: TrainingSet
) -> None:
    assert check_demo_values(vocab_size, tokenization, training_set) == []
