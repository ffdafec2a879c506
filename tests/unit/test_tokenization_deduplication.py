"""Near duplicates."""

import random

import pytest

from eagle3_data.tokenization.reading.near_duplicates import NearDuplicates, signature_of
from eagle3_data.tokenization.reading.rows import Conversation, FormattedText, TokenizedRow
from tiny_tokenizer import TEXTS, talk, turn

WORDS = sorted(set(" ".join(TEXTS).replace(".", "").split()))


def text(seed, changed=0):
    random.seed(seed)
    words = [random.choice(WORDS) for _ in range(200)]
    for number in range(changed):
        words[number * 20] = f"other{number}"
    return " ".join(words)


def test_near_duplicates_are_found_and_different_texts_are_not():
    near = NearDuplicates(0.7)
    assert near.add(signature_of(FormattedText(text(1))))
    assert not near.add(signature_of(FormattedText(text(1, changed=2))))
    assert near.add(signature_of(FormattedText(text(2))))
    assert not near.add(signature_of(FormattedText(text(2).upper())))
    assert near.add(signature_of(FormattedText(text(1, changed=9))))


@pytest.mark.parametrize("threshold", [0.99, 1.0, 0.0001])
def test_any_threshold_can_be_asked_for(threshold):
    near = NearDuplicates(threshold)
    assert near.add(signature_of(FormattedText(text(1))))
    assert not near.add(signature_of(FormattedText(text(1).upper())))
    assert near.add(signature_of(FormattedText(text(1, changed=2)))) == (threshold > 0.9)


def test_a_system_prompt_that_all_share_does_not_make_duplicates():
    system = turn("system", text(3))
    near = NearDuplicates(0.7)
    assert near.add(signature_of(Conversation([system, *talk("What is a river?", text(4))])))
    assert near.add(signature_of(Conversation([system, *talk("What is a mountain?", text(5))])))
    assert not near.add(
        signature_of(Conversation([turn("system", "Else."), *talk("What is a river?", text(4))]))
    )


@pytest.mark.parametrize(
    "content", [FormattedText("short"), FormattedText(""), TokenizedRow([1, 2, 3], b"\x01\x01\x01")]
)
def test_short_rows_have_a_signature_too(content):
    near = NearDuplicates(0.9)
    assert near.add(signature_of(content))
    assert not near.add(signature_of(content))


def test_the_missing_package_is_named(monkeypatch):
    from eagle3_data.errors import ConfigError

    monkeypatch.setitem(__import__("sys").modules, "datasketch", None)
    with pytest.raises(ConfigError, match="needs the package datasketch"):
        NearDuplicates(0.9)
