"""The target's own answers on real vLLM with a template that changes history: two sampled answers to each
question, of several turns, from questions to a proven training set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from integration.fixtures import demo_config
from integration.generated import (
    answers,
    stop_ids,
    target_that_ends_turns,
    trained,
    turns,
)
from integration.workflow import Workflow, write_jsonl

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,  # minutes of two cores
    pytest.mark.timeout(2400),
    pytest.mark.xdist_group("vllm"),
]

MAX_TOKENS = 32


STRIPPING = """{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content.split('</think>')[-1].strip() + 'user' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' -}}{%- endif -%}"""
"""As Qwen3's without thinking: an answer is asked for behind empty reasoning, which history does not show."""


def test_where_history_is_changed_each_of_two_sampled_answers_is_a_sample_of_what_the_target_saw(
    tiny_llama: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    target = target_that_ends_turns(tiny_llama, tmp_path / "target", STRIPPING)
    questions = [[f"What is {row} plus {turn}?" for turn in range(3)] for row in range(6)]
    messages = [
        [
            turn
            for text in row
            for turn in ({"role": "user", "content": text}, {"role": "assistant", "content": "?"})
        ]
        for row in questions
    ]
    workflow = Workflow(tmp_path / "run", demo_config(target, dtype="float32"))
    workflow.config["generation"] = {
        "responses": "target",
        "max_tokens": MAX_TOKENS,
        "looping_answers": "keep",
        "n": 2,
        "temperature": 0.8,
        "top_p": 0.95,
    }
    workflow.config["data"]["sources"] = [{"path": "talks.jsonl"}]
    write_jsonl(workflow.directory / "talks.jsonl", [{"messages": row} for row in messages])
    run = workflow.run("all", timeout=2300)
    assert run.returncode == 0, run.output
    assert workflow.run("all").nothing_done
    assert len(answers(workflow)) == 2 * len(questions)
    assert set(trained(workflow)) <= {(prompt, answer) for prompt, answer, _ in turns(workflow)}
    table = pq.read_table(workflow.results / "tokens/samples.parquet")
    provenance = json.loads((workflow.results / "training_set/provenance.json").read_text())
    assert len(trained(workflow)) == table.num_rows == provenance["rows"], "one answer a sample"
    tokenizer, stops = AutoTokenizer.from_pretrained(target), stop_ids(workflow)
    later = 0
    for row, one in ((_row_of(tokenizer, one), one) for one in answers(workflow).values()):
        history: list[dict[str, str]] = []
        for text, (turn, prompt) in zip(questions[row], one.prompts(), strict=False):
            history.append({"role": "user", "content": text})
            rendered = tokenizer.apply_chat_template(history, tokenize=False, add_generation_prompt=True)
            assert prompt == tokenizer(rendered, add_special_tokens=False)["input_ids"]
            said = turn.answer[:-1] if turn.answer[-1] in stops else turn.answer
            history.append({"role": "assistant", "content": tokenizer.decode(said)})
            later += len(history) > 2
    assert later > 4
    names = table["sample_id"].to_pylist()
    assert {name.partition("#")[2].partition(":")[0] for name in names} == {"1", "2"}


def _row_of(tokenizer: Any, one: Any) -> int:
    return int(tokenizer.decode(one.turns[0].added).partition("What is ")[2].partition(" ")[0])
