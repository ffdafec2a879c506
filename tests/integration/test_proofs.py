"""Which proof sees which wrong states, on real states of both demo targets, and that right ones pass."""

from __future__ import annotations

import base64
import random
from math import floor
from pathlib import Path
from typing import Any

import pytest
import transformers

from integration.fixtures import demo_target
from mutations import MUTATIONS
from proof_ground import demo_ids, ground

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

LAYERS = (2, 4, 5, 8)
SHARING, SAMPLES = 12, 28


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-kimi"])
def test_each_kind_of_wrong_states_is_seen_as_the_table_says(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str
) -> None:
    target = demo_target(tmp_path_factory, name)
    made = ground(target, tmp_path, LAYERS, demo_ids(target, SAMPLES, SHARING))
    right = list(made.measured.values())
    assert made.judge(right).rejected == {}
    sharing, alone = made.samples[4:10], made.samples[SHARING + 4 : SHARING + 10]
    failed = []
    for mutation in MUTATIONS:
        with made.damaged([*sharing, *alone], mutation.damage) as own:
            without, judge = made.judge(own, shared_prefixes=False), made.judge(own)
        seen = [key for key, why in without.rejected.items() if any(name in why for name in mutation.by)]
        if mutation.by and len(seen) < floor(mutation.share * len(own)):
            failed.append(f"{mutation.name}: {len(seen)} of {len(own)} by {mutation.by}: {without.rejected}")
        left = [one.key for one in sharing if one.key not in without.rejected]
        met = [key for key in left if "shared-prefix" in judge.rejected.get(key, "")]
        if mutation.prefix and len(met) < len(left):
            failed.append(f"{mutation.name}: {len(met)} of {len(left)} by their prefixes")
        damaged = {one.key for one in own}  # of two that disagree, both may be rejected
        wrongly = {key for key, why in judge.rejected.items() if "shared-prefix" not in why} - damaged
        if wrongly:
            failed.append(f"{mutation.name}: rejected, though right: {wrongly}")
    assert not failed, "\n".join(failed)


EDGES = (1, 2, 3, 15, 16, 17, 18, 31, 32, 33, 34, 63, 64, 65, 127, 128, 129, 255, 256, 257)
"""Lengths beside those at which blocks, chunks and the proofs' own windows end."""


def odd_texts(target: Path) -> list[list[int]]:
    """Token ids that nobody predicts, or not this target: keys, digits, repetitions, other languages."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(target)
    draw = random.Random(0)
    texts = [text * 30 for text in ("ab ", "\n", " ", "ошибка в программе ", "智能的实质。", "0")]
    for _ in range(12):
        texts.append(base64.b64encode(draw.randbytes(300)).decode())
        texts.append("".join(draw.choices("0123456789", k=400)))
        texts.append(" ".join(f"{draw.getrandbits(128):032x}" for _ in range(10)))
    ids = [tokenizer.encode(text)[:300] for text in texts]
    ids += [[draw.randrange(len(tokenizer))] * count for count in (20, 64, 200)]
    return ids + [draw.choices(range(len(tokenizer)), k=count) for count in (20, 64, 150, 300)]


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-kimi"])
def test_right_states_of_odd_texts_and_lengths_are_not_rejected(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str
) -> None:
    target = demo_target(tmp_path_factory, name)
    talks = demo_ids(target, 40, 0)
    cut = [talk[: EDGES[number % len(EDGES)]] for number, talk in enumerate(talks)]
    unlike = {tuple(ids): ids for ids in (*talks, *cut, *odd_texts(target))}
    made = ground(target, tmp_path, LAYERS, list(unlike.values()))
    judge = made.judge(list(made.measured.values()))
    assert judge.rejected == {}
    assert judge.unexplained, "else these texts are not odd"
