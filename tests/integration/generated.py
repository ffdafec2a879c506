"""What a run's target was asked and has answered, and the same from transformers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch

from eagle3_data.engines.language_model import language_model_directory, load_language_model
from eagle3_data.generation.answers import Answers
from eagle3_data.generation.store import GenerationStore
from integration.workflow import Workflow

ChatTurn = tuple[tuple[int, ...], tuple[int, ...], str]
"""Prompt, answer, and how it ended."""


def target_that_ends_turns(demo_target: Path, directory: Path, template: str | None = None) -> Path:
    """A copy, with another chat template if one is given. The demo's models have learned little but the chat
    format in their few seconds of training, and seldom end an answer. They say `user` often enough, so here
    that ends a turn."""
    from transformers import AutoTokenizer

    shutil.copytree(demo_target, directory)
    (end,) = AutoTokenizer.from_pretrained(directory)("user", add_special_tokens=False)["input_ids"]
    path = directory / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [2, end]}))
    if template:
        (directory / "chat_template.jinja").write_text(template)
    return directory


def answers(workflow: Workflow) -> dict[str, Answers]:
    (directory,) = workflow.directory.glob("results/generations/*/shards")
    store = GenerationStore(directory.parents[1], directory.parent.name)
    reader = store.reader()
    return {key: found for key in sorted(store.keys()) if (found := reader.find(key))}


def turns(workflow: Workflow) -> list[ChatTurn]:
    return [
        (tuple(prompt), turn.answer, turn.finish)
        for one in answers(workflow).values()
        for turn, prompt in one.prompts()
    ]


def stop_ids(workflow: Workflow) -> list[int]:
    return json.loads((workflow.results / "prompts/batches.json").read_text())["tokenizer"]["stop_ids"]


def trained(workflow: Workflow) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The trained stretches of all samples, each with what stands before it."""
    table = pq.read_table(workflow.results / "tokens/samples.parquet")
    found = []
    for ids, mask in zip(table["input_ids"].to_pylist(), table["loss_mask"].to_pylist(), strict=True):
        edges = np.flatnonzero(np.diff([0, *mask, 0]))
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            found.append((tuple(ids[:start]), tuple(ids[start:end])))
    return found


def left_out(workflow: Workflow) -> int:
    """How many answers are trained nowhere, by the run's own account."""
    index = json.loads((workflow.results / "tokens/batches.json").read_text())
    return sum(index["dropped"].values()) + sum(index["dropped_turns"].values())


def greedy_answers(
    workflow: Workflow, prompts: Sequence[Sequence[int]], max_tokens: int
) -> list[tuple[int, ...]]:
    """What transformers' `generate` says in float32, with the same tokens that end an answer."""
    stops = stop_ids(workflow)
    with language_model_directory(Path(workflow.config["target"]["path"])) as directory:
        model = load_language_model(directory, torch.float32, trust_remote_code=False).eval()
    said = []
    for prompt in prompts:
        with torch.inference_mode():
            ids = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=stops,
                pad_token_id=stops[0],
            )[0, len(prompt) :]
        said.append(tuple(ids.tolist()))
    return said
