"""The draft vocabulary map, in the format of speculators."""

import numpy as np
import pytest

from eagle3_data.errors import ConfigError
from eagle3_data.tokenization.tokenizer import stop_token_ids
from eagle3_data.vocabulary import draft_vocabulary_map
from tiny_tokenizer import Tiny


def counts(size, **of):
    frequencies = np.zeros(size, np.int64)
    for token, count in of.items():
        frequencies[int(token[1:])] = count
    return frequencies


def chosen(d2t):
    return (d2t + np.arange(len(d2t))).tolist()


def test_the_most_frequent_and_the_required_tokens_are_in():
    d2t, t2d = draft_vocabulary_map(counts(50, t40=9, t30=8, t20=7, t10=6), 4, always=(45, 2))
    assert chosen(d2t) == [2, 30, 40, 45]
    assert (d2t.dtype, d2t.shape, t2d.dtype, t2d.shape) == (np.int64, (4,), np.bool_, (50,))
    assert np.flatnonzero(t2d).tolist() == [2, 30, 40, 45]


@pytest.mark.parametrize("size", [3, 10, 50])
def test_a_corpus_with_fewer_tokens_still_fills_the_vocabulary(size):
    d2t, t2d = draft_vocabulary_map(counts(50, t49=1, t48=2), size, always=(47,))
    ids = chosen(d2t)
    assert len(set(ids)) == size == t2d.sum()
    assert ids == sorted(ids)
    assert {47, 48, 49} <= set(ids)
    assert all(t2d[token] for token in ids)


def test_the_map_is_read_by_the_trainer_as_meant():
    import torch

    frequencies = np.random.default_rng(0).integers(0, 100, 500)
    d2t, t2d = draft_vocabulary_map(frequencies, 100, always=(0, 1, 499))
    draft_ids = torch.arange(100)
    target_ids = draft_ids + torch.from_numpy(d2t)  # as speculators maps a draft token back
    assert torch.equal(torch.nonzero(torch.from_numpy(t2d)).flatten(), target_ids)


@pytest.mark.parametrize(
    ("size", "always", "words"),
    [
        (51, (), "is 51, more than the target's vocabulary"),
        (2, (1, 2, 3), "3 special and end tokens"),
        (5, (60,), "outside the target's vocabulary of 50"),
    ],
)
def test_an_impossible_size_is_an_error(size, always, words):
    with pytest.raises(ConfigError, match=words):
        draft_vocabulary_map(counts(50, t1=1), size, always)


def test_special_and_end_tokens_are_found(tmp_path):
    tokenizer = Tiny("chatml").tokenizer
    assert set(tokenizer.special_ids) >= set(range(25))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 8]}', encoding="utf-8")
    (tmp_path / "config.json").write_text('{"eos_token_id": 9}', encoding="utf-8")

    class Tokenizer:
        eos_token_id = 8

    assert stop_token_ids(tmp_path, Tokenizer()) == [8, 7, 9]
