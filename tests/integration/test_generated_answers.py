"""Claims about the target's own answers and their states, on real vLLM: the demo and conversations of
several turns, from questions to a proven training set, compared with transformers token by token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.config import load_config
from eagle3_data.engines.base import Done, Fatal, Ready, Rejected
from eagle3_data.engines.process import EngineProcess
from eagle3_data.generation.answers import LENGTH, STOP, Question
from eagle3_data.generation.run_pass import GenerationJob
from eagle3_data.target import TargetDescription
from integration.fixtures import demo_config
from integration.generated import (
    answers,
    greedy_answers,
    left_out,
    stop_ids,
    target_that_ends_turns,
    trained,
    turns,
)
from integration.parity import compare
from integration.workflow import Workflow, write_jsonl

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("vllm")]

LAYERS = [2, 4, 5, 8]
MAX_TOKENS = 48
STEP = 64
"""Tokens that vLLM computes at once: fewer than many a sample has."""
COMPARED = 20
"""Turns that transformers generates again."""


def talk(number: int, turns: int) -> dict[str, Any]:
    questions = [f"What is {number} plus {turn}?" for turn in range(turns)]
    said = [{"role": role, "content": text} for text in questions for role in ("user", "assistant")]
    return {"messages": said[:-1]}


TEMPLATE = """{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\n' + message.content + 'user' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"""


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> Workflow:
    directory = tmp_path_factory.mktemp("generated")
    target = target_that_ends_turns(tiny_llama, directory / "target", TEMPLATE)
    workflow = Workflow(directory / "run", demo_config(target, dtype="float32"))
    workflow.config["generation"] = {
        "responses": "target",
        "max_tokens": MAX_TOKENS,
        "looping_answers": "keep",
    }
    workflow.config["compatibility"] = {"canary": "off"}
    workflow.config["extraction"]["engine_arguments"]["max_num_batched_tokens"] = STEP
    write_jsonl(workflow.directory / "talks.jsonl", [talk(number, 3) for number in range(7)])
    workflow.config["data"]["sources"][0]["limit"] = 14
    workflow.config["data"]["sources"].append({"path": "talks.jsonl"})
    run = workflow.run("all", timeout=1500)
    assert run.returncode == 0, run.output
    return workflow


def test_prompts_become_a_proven_training_set_with_one_load_for_each_pass(generated: Workflow) -> None:
    ledger = json.loads((generated.results / "generation/passes/001/0.json").read_text())
    assert ledger["model_loads"] == 1
    assert ledger["samples_extracted"] == len(answers(generated))
    assert ledger["answers"]["stop"] + ledger["answers"]["length"] == len(turns(generated))
    index = json.loads((generated.results / "tokens/batches.json").read_text())
    provenance = json.loads((generated.results / "training_set/provenance.json").read_text())
    assert provenance["rows"] == index["samples"] > 20
    assert provenance["generation"]["responses"] == "target"
    assert provenance["generation"]["id"] == ledger["extraction_id"]
    card = (generated.results / "training_set/README.md").read_text()
    assert f"the target's own, greedy, of at most {MAX_TOKENS} tokens" in card
    assert generated.run("all").nothing_done


def test_in_float32_every_layer_of_every_sample_equals_transformers(generated: Workflow) -> None:
    compared = compare(generated, LAYERS)
    assert len(compared) == len(generated.stored())
    assert max(error for one in compared for error in one.own()) < 1e-3
    assert min(error for one in compared for error in one.neighbours()) > 0.2, (
        "an off-by-one would go unnoticed"
    )


def test_what_took_several_steps_comes_out_the_same_alone(generated: Workflow) -> None:
    replay = json.loads(generated.ledger("001").read_text())["replay"]
    assert (len(replay["samples"]), replay["failed"], replay["unfinished"]) == (8, {}, "")
    assert (replay["longest_step"], replay["crossing"] >= 2) == (STEP, True)
    assert max(slot["max"] for slot in replay["slots"]) < 0.05


def test_the_trained_ids_are_the_engines(generated: Workflow) -> None:
    told = {(prompt, answer) for prompt, answer, _ in turns(generated)}
    assert set(trained(generated)) <= told
    assert len(told) - len(trained(generated)) <= left_out(generated)


def test_greedy_answers_are_those_of_transformers_token_by_token(generated: Workflow) -> None:
    compared = turns(generated)
    assert len(compared) >= COMPARED
    assert {finish for _, _, finish in compared} == {STOP, LENGTH}
    said = greedy_answers(generated, [prompt for prompt, _, _ in compared[:COMPARED]], MAX_TOKENS)
    assert said == [answer for _, answer, _ in compared[:COMPARED]]


@pytest.fixture(scope="module")
def sampling(generated: Workflow) -> Iterator[EngineProcess]:
    """The engine of the finished run, at a temperature."""
    config = load_config(generated.config)
    job = GenerationJob(
        target=config.target,
        tokenization=config.tokenization,
        extraction=config.extraction,
        compatibility=config.compatibility,
        description=TargetDescription.read(generated.results / "target.json"),
        results=generated.results,
        number="900",
        stripe=0,
        engine_log=generated.directory / "sampling.log",
        generation=config.generation.model_copy(update={"temperature": 0.8, "top_p": 0.95}),
    )
    engine = EngineProcess(job.engine_settings(stop_ids(generated)), job.engine_log)
    try:
        while not isinstance(event := engine.receive(1), Ready):
            assert not isinstance(event, Fatal), event
        yield engine
    finally:
        engine.kill()


def ask(engine: EngineProcess, questions: list[Question]) -> dict[str, Done]:
    for question in questions:
        engine.send(question)
    done: dict[str, Done] = {}
    while len(done) < len(questions):
        event = engine.receive(1)
        assert not isinstance(event, Fatal), event
        if isinstance(event, Done):
            done[event.key] = event
    return done


@pytest.mark.nightly  # a load of its own
def test_what_is_drawn_depends_on_the_question_and_its_number_not_on_the_batch(
    generated: Workflow, sampling: EngineProcess
) -> None:
    prompts = [prompt for prompt, _, _ in turns(generated)[:6]]
    questions = [
        Question(f"{number}{place}", tuple(prompt), "")
        for place, prompt in enumerate(prompts)
        for number in "ab"
    ]
    first = ask(sampling, questions)
    assert ask(sampling, questions[::-1]) == first
    assert ask(sampling, questions[3:4]) == {questions[3].key: first[questions[3].key]}
    assert any(
        first[f"a{place}"].answers.turns[0].answer != first[f"b{place}"].answers.turns[0].answer
        for place in range(len(prompts))
    )


@pytest.mark.nightly  # a load of its own
def test_a_prompt_that_fills_the_window_gets_what_fits_or_is_refused(
    generated: Workflow, sampling: EngineProcess
) -> None:
    window = generated.config["tokenization"]["max_length"]
    full, fuller = (
        Question(name, (300,) * length, "") for name, length in (("x", window - 1), ("y", window))
    )
    done = ask(sampling, [full, fuller])
    (turn,) = done["x"].answers.turns
    assert len(turn.answer) == 1
    assert isinstance(done["y"], Rejected)


def test_several_turns_continue_what_the_target_saw(generated: Workflow) -> None:
    several = [one for one in answers(generated).values() if len(one.turns) > 1]
    assert len(several) >= 3
    for one in several:
        assert all(turn.finish == STOP for turn in one.turns[:-1])
        seen = 0
        for turn, prompt in one.prompts():
            assert turn.kept == seen
            seen = len(prompt) + len(turn.answer)
