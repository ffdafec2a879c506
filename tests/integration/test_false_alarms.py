"""No proof of every sample rejects right states: of ten architectures with random weights, and of both demo
targets on real conversations; 2,000 samples in all, with the lengths at which blocks, chunks and the proofs'
own windows end."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from integration.fixtures import SHARED_DATA, demo_target
from proof_ground import Ground, demo_ids, ground
from tiny_models import LAYERS, VOCABULARY, tiny_model

pytestmark = pytest.mark.slow

ARCHITECTURES = [
    "Cohere2ForCausalLM",
    "DeepseekV3ForCausalLM",
    "Gemma2ForCausalLM",
    "GPTNeoXForCausalLM",
    "GptOssForCausalLM",
    "LlamaForCausalLM",
    "NemotronForCausalLM",
    "Phi3ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
]
EDGES = (1, 2, 3, 15, 16, 17, 18, 31, 32, 33, 34, 63, 64, 65, 127, 128, 129, 255, 256, 257)
FEW, MANY, OF_DEMO = 20, 140, 300


def random_ids(count: int) -> list[list[int]]:
    """Every other sample that is long enough begins as the others do; which lengths, that alternates."""
    draw = random.Random(0)
    first = draw.choices(range(3, VOCABULARY), k=40)
    found: dict[tuple[int, ...], list[int]] = {}
    while len(found) < count:
        turn, place = divmod(len(found), len(EDGES))
        begin = first if (turn + place) % 2 and EDGES[place] > len(first) else []
        ids = [*begin, *draw.choices(range(3, VOCABULARY), k=EDGES[place] - len(begin))]
        found[tuple(ids)] = ids
    return list(found.values())


def real_ids(target: Path) -> list[list[int]]:
    """Of the two files of real conversations, cut to 500 tokens, or every other one to an edge."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(target)
    talks = json.loads((SHARED_DATA / "sharegpt_fastchat_dummy.json").read_text(encoding="utf-8"))
    agents = json.loads((SHARED_DATA / "tau_bench_airline_100.json").read_text(encoding="utf-8"))
    texts = ["\n".join(turn["value"] for turn in one["conversations"]) for one in talks]
    texts += ["\n".join(turn["content"] or "" for turn in one["traj"]) for one in agents]
    random.Random(0).shuffle(texts)
    found: dict[tuple[int, ...], list[int]] = {}
    for number, text in enumerate(texts):
        length = EDGES[number % len(EDGES)] if number % 2 else 500
        ids = tokenizer.encode(text[:4000])[:length]
        found[tuple(ids)] = ids
    return list(islice(found.values(), OF_DEMO))


def check_nothing_is_rejected(made: Ground) -> None:
    judge = made.judge(list(made.measured.values()))
    assert judge.rejected == {}
    applied = {proof.proof: proof.samples for proof in judge.proofs(list(made.measured.values()))}
    assert applied["greedy-token"] == applied["numbers"] == len(made.samples)
    assert applied["shared-prefix"], "else the samples do not begin alike"


@pytest.mark.parametrize("count", [FEW, pytest.param(MANY, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_right_states_of_random_targets_are_not_rejected(
    tmp_path: Path, architecture: str, count: int
) -> None:
    target = tmp_path / "target"
    tiny_model(architecture).to(torch.bfloat16).save_pretrained(target)
    made = ground(target, tmp_path, tuple(range(1, LAYERS + 1)), random_ids(count))
    check_nothing_is_rejected(made)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["tiny-llama", "tiny-kimi"])
def test_right_states_of_demo_targets_are_not_rejected(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, name: str
) -> None:
    target = demo_target(tmp_path_factory, name)
    ids = real_ids(target) if SHARED_DATA.exists() else demo_ids(target, OF_DEMO, 12)
    check_nothing_is_rejected(ground(target, tmp_path, (2, 4, 5, 8), ids))
