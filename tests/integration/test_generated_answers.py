"""Claims about the target's own answers, on real vLLM: the demo and conversations of several turns, from
questions to a proven training set, compared with transformers token by token."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from eagle3_data.generation.answers import LENGTH, STOP, Answers
from eagle3_data.generation.store import GenerationStore
from integration.fixtures import demo_config
from integration.workflow import Workflow, write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("vllm")]

MAX_TOKENS = 48
COMPARED = 40
"""Turns that transformers generates again."""


def talk(number: int, turns: int) -> dict[str, Any]:
    questions = [f"What is {number} plus {turn}?" for turn in range(turns)]
    said = [{"role": role, "content": text} for text in questions for role in ("user", "assistant")]
    return {"messages": said[:-1]}


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Workflow:
    workflow = Workflow(
        tmp_path_factory.mktemp("generated") / "run", demo_config(tiny_llama, dtype="float32")
    )
    workflow.config["generation"] = {
        "responses": "target",
        "max_tokens": MAX_TOKENS,
        "looping_answers": "keep",
    }
    workflow.config["compatibility"] = {"canary": "off"}
    write_jsonl(workflow.directory / "talks.jsonl", [talk(number, 3) for number in range(8)])
    workflow.config["data"]["sources"].append({"path": "talks.jsonl"})
    run = workflow.run("all", timeout=1500)
    assert run.returncode == 0, run.output
    return workflow


def answers(workflow: Workflow) -> dict[str, Answers]:
    (directory,) = workflow.directory.glob("results/generations/*/shards")
    store = GenerationStore(directory.parents[1], directory.parent.name)
    reader = store.reader()
    return {key: found for key in sorted(store.keys()) if (found := reader.find(key))}


def turns(workflow: Workflow) -> list[tuple[list[int], tuple[int, ...], str]]:
    """Prompt, answer, and how it ended, of every turn."""
    return [
        (prompt, turn.answer, turn.finish)
        for one in answers(workflow).values()
        for turn, prompt in one.prompts()
    ]


def test_prompts_become_a_proven_training_set_with_one_load_for_each_pass(generated: Workflow) -> None:
    ledger = json.loads((generated.results / "generation/passes/001/0.json").read_text())
    assert ledger["model_loads"] == 1
    assert ledger["samples_extracted"] == len(answers(generated))
    assert ledger["answers"]["stop"] + ledger["answers"]["length"] == len(turns(generated))
    index = json.loads((generated.results / "tokens/batches.json").read_text())
    provenance = json.loads((generated.results / "training_set/provenance.json").read_text())
    assert provenance["rows"] == index["samples"] > 40
    assert provenance["generation"]["responses"] == "target"
    assert provenance["generation"]["id"] == ledger["extraction_id"]
    assert generated.run("all").nothing_done


def test_the_trained_ids_are_the_engines(generated: Workflow) -> None:
    table = pq.read_table(generated.results / "tokens/samples.parquet")
    trained = {}
    for ids, mask in zip(table["input_ids"].to_pylist(), table["loss_mask"].to_pylist(), strict=True):
        edges = np.flatnonzero(np.diff([0, *mask, 0]))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            trained[tuple(ids[:start])] = tuple(ids[start:end])
    told = {tuple(prompt): answer for prompt, answer, _ in turns(generated)}
    assert trained.items() <= told.items()
    assert len(told) - len(trained) <= sum(index_of_dropped(generated).values())


def index_of_dropped(workflow: Workflow) -> dict[str, int]:
    index = json.loads((workflow.results / "tokens/batches.json").read_text())
    return {**index["dropped"], **{f"turn {name}": n for name, n in index["dropped_turns"].items()}}


def test_greedy_answers_are_those_of_transformers_token_by_token(
    generated: Workflow, tiny_llama: Path
) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    stops = json.loads((generated.results / "prompts/batches.json").read_text())["tokenizer"]["stop_ids"]
    compared = turns(generated)
    assert len(compared) >= COMPARED
    assert {finish for _, _, finish in compared} >= {STOP} or {LENGTH}
    different = []
    for prompt, answer, _ in compared[:COMPARED]:
        with torch.inference_mode():
            found = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=MAX_TOKENS,
                do_sample=False,
                eos_token_id=stops,
                pad_token_id=stops[0],
            )[0, len(prompt) :]
        if tuple(found.tolist()) != answer:
            different.append((answer, tuple(found.tolist())))
    assert not different


def test_several_turns_continue_what_the_target_saw(generated: Workflow) -> None:
    several = [one for one in answers(generated).values() if len(one.turns) > 1]
    assert several
    for one in several:
        assert all(turn.finish == STOP for turn in one.turns[:-1])
