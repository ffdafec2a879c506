"""From rows to questions, from answers to samples: a made-up target answers in a few chat templates."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from eagle3_data.config import Data, Generation, Target
from eagle3_data.errors import InputError
from eagle3_data.generation.answers import Answered, Answers, Question
from eagle3_data.generation.dialogue import Asker
from eagle3_data.generation.engine import Generated, Generator, GeneratorSettings
from eagle3_data.generation.prompts import Unit, UnitReader
from eagle3_data.generation.samples import AnswerTokenizer
from eagle3_data.tokenization.reading.rows import Outcome, Row
from tiny_tokenizer import Tiny, assistant, call, describe, ids_of, talk, tiny_directory, turn, user

END = "<|im_end|>"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


class Parrot(Generator):
    """Says what `say` makes of the whole prompt's text, up to max_tokens."""

    def __init__(self, settings: GeneratorSettings, tiny: Tiny, say: Callable[[str], str]) -> None:
        super().__init__(settings)
        self._tiny, self._say = tiny, say
        self._waiting: list[tuple[str, list[int], int]] = []
        self.prompts: list[list[int]] = []

    def start(self, name: str, prompt: list[int], max_tokens: int, seed: int) -> None:
        self._waiting.append((name, prompt, max_tokens))

    def advance(self) -> Iterator[Generated]:
        name, prompt, most = self._waiting.pop()
        self.prompts.append(prompt)
        backend = self._tiny.tokenizer.backend
        yield Generated(name, tuple(backend.encode(self._say(backend.decode(prompt)), [])[0][:most]))

    def close(self) -> None: ...


class Talks:
    """A target with one of the small templates, and what a run would make of its answers."""

    def __init__(self, template: str, max_length: int = 512, **generation) -> None:
        self.tiny = Tiny(template, max_length=max_length)
        self.settings = Generation(responses="target", **{"max_tokens": 40, **generation})
        self.data = Data(sources=({"path": "talks.jsonl"},))
        parts = (self.tiny.tokenizer, self.data, self.tiny.settings, self.settings)
        self.reader = UnitReader(*parts)
        self.answers: dict[str, Answers] = {}
        self.tokenizer = AnswerTokenizer(*parts, self.answers.get)
        path, size = tiny_directory(template)
        self._settings = GeneratorSettings(
            engine="",
            model_path=str(path),
            dtype="float32",
            tensor_parallel=1,
            max_length=max_length,
            trust_remote_code=False,
            max_tokens=self.settings.max_tokens,
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            seed=0,
            stop_ids=self.reader.stop_ids,
            description=describe(path, size),
            target=Target(path=str(path)),
            tokenization=self.tiny.settings,
        )
        self.prompts: list[str] = []

    def asked(self, messages: list, **row) -> Outcome:
        return self.reader(Row(0, 0, "line 1", text=json.dumps({"messages": messages, **row})))

    def answered(self, messages: list, say: Callable[[str], str], **row) -> Outcome:
        parrot = Parrot(self._settings, self.tiny, say)
        for unit in self.asked(messages, **row).samples:
            assert isinstance(unit, Unit)
            parrot.submit(Question(unit.key, tuple(ids_of(unit)), unit.conversation))
        while parrot._waiting:
            for done in parrot.step():
                assert isinstance(done, Answered)
                self.answers[done.key] = done.answers
        self.prompts = [self.tiny.tokenizer.backend.decode(prompt) for prompt in parrot.prompts]
        return self.tokenizer(Row(0, 0, "line 1", text=json.dumps({"messages": messages, **row})))

    def shown(self, outcome: Outcome) -> list[str]:
        return [self.tiny.show(sample) for sample in outcome.samples]


def said_of(outcome: Outcome) -> list[str]:
    return [*(drop.reason for drop in outcome.dropped), *(notice.label for notice in outcome.notices)]


def counting(prompt: str) -> str:
    """A different answer at each turn."""
    return f"Answer {prompt.count('assistant')}.{END}"


def test_the_prompt_is_the_templates_own_rendering_and_the_answers_ids_are_trained() -> None:
    talks = Talks("chatml")
    outcome = talks.answered(talk("Hi", "not this"), counting)
    assert talks.shown(outcome) == [f"<|im_start|>user\nHi{END}\n<|im_start|>assistant\n⟦Answer 1.{END}⟧"]
    template, backend = talks.tiny.tokenizer.template, talks.tiny.tokenizer.backend
    prompt = backend.encode(template.render([user("Hi")], generation_prompt=True), [])[0]
    answer = backend.encode(f"Answer 1.{END}", [])[0]
    assert ids_of(outcome.samples[0]) == prompt + answer
    assert said_of(outcome) == []


def test_answers_that_no_tokenizer_would_write_so_are_trained_as_they_are() -> None:
    talks = Talks("chatml")
    backend = talks.tiny.tokenizer.backend
    letters = [backend.encode(letter, [])[0][0] for letter in "Hello"]
    assert letters != backend.encode("Hello", [])[0]
    end = backend.encode(END, [])[0]

    class Speller(Parrot):
        def advance(self) -> Iterator[Generated]:
            name, prompt, _ = self._waiting.pop()
            self.prompts.append(prompt)
            yield Generated(name, (*letters, *end))

    row = talk("Hi", "a", "And?", "b")
    speller = Speller(talks._settings, talks.tiny, str)
    (unit,) = talks.asked(row).samples
    speller.submit(Question(unit.key, tuple(ids_of(unit)), unit.conversation))
    while speller._waiting:
        for done in speller.step():
            talks.answers[done.key] = done.answers
    (sample,) = talks.tokenizer(Row(0, 0, "", text=json.dumps({"messages": row}))).samples
    ids = ids_of(sample)
    assert [id for id, trained in zip(ids, sample.mask, strict=True) if trained] == [*letters, *end] * 2
    assert ids[: len(speller.prompts[1])] == speller.prompts[1]


@pytest.mark.parametrize("template", ["chatml", "headers", "im_middle"])
def test_turns_follow_one_another_in_one_sample(template: str) -> None:
    talks = Talks(template)
    stop = talks.tiny.tokenizer.backend.decode([talks.reader.stop_ids[-1]])
    ends = {talks.tiny.tokenizer.backend.decode([id]) for id in talks.reader.stop_ids}
    closing = next((end for end in ends if end in talks.tiny.tokenizer.template.render(talk("q", "a"))), stop)

    def say(prompt: str) -> str:
        return f"So {len(prompt)}.{closing}"

    outcome = talks.answered(talk("Hi", "x", "And?", "y", "Bye", "z"), say)
    assert len(talks.prompts) == 3, said_of(outcome)
    (shown,) = talks.shown(outcome)
    for prompt in talks.prompts:
        assert f"⟦So {len(prompt)}.{closing}⟧" in shown
        assert shown.replace("⟦", "").replace("⟧", "").startswith(prompt)
    assert "x" not in shown.replace("<|", "")


@pytest.mark.parametrize("template", ["channels", "plain", "role_tokens"])
def test_where_history_is_written_otherwise_each_sample_is_what_the_target_saw(template: str) -> None:
    talks = Talks(template)
    outcome = talks.answered(talk("Hi", "x", "And?", "y"), lambda prompt: f"So {len(prompt)}.<|endoftext|>")
    assert talks.shown(outcome) == [f"{prompt}⟦So {len(prompt)}.<|endoftext|>⟧" for prompt in talks.prompts]
    assert "So " in talks.prompts[1]
    assert said_of(outcome) == ["changed-history"]


def test_a_token_that_only_closes_turns_in_history_ends_no_answer() -> None:
    """As in gpt-oss, whose reasoning ends with the token that closes earlier turns."""
    tiny = Tiny("channels")
    backend = tiny.tokenizer.backend
    stops = {}
    for eos in ("<|endoftext|>", "<|return|>"):
        tiny.tokenizer.template.stop_texts = (eos,)
        stops[eos] = {backend.decode([id]) for id in Asker(tiny.tokenizer, tiny.settings).stops}
    assert stops["<|return|>"] == {"<|return|>"}
    assert stops["<|endoftext|>"] == {"<|endoftext|>", "<|end|>", "<|return|>"}


def test_where_reasoning_is_stripped_each_answer_is_a_sample_of_what_the_target_saw() -> None:
    talks = Talks("reasoning_stripped")

    def say(prompt: str) -> str:
        return f"<think>\nHm {prompt.count('user')}\n</think>\n\nYes {prompt.count('user')}.{END}"

    outcome = talks.answered(talk("Hi", "x", "And?", "y"), say)
    assert talks.prompts[1] == (
        f"<|im_start|>user\nHi{END}\n<|im_start|>assistant\nYes 1.{END}\n"
        f"<|im_start|>user\nAnd?{END}\n<|im_start|>assistant\n"
    )
    assert talks.shown(outcome) == [
        f"{talks.prompts[0]}⟦<think>\nHm 1\n</think>\n\nYes 1.{END}⟧",
        f"{talks.prompts[1]}⟦<think>\nHm 2\n</think>\n\nYes 2.{END}⟧",
    ]
    assert [sample.suffix for sample in outcome.samples] == [":1", ":2"]
    assert said_of(outcome) == ["changed-history"]


def test_where_the_prompt_opens_the_reasoning_it_is_kept_apart_from_the_answer() -> None:
    talks = Talks("im_middle_thinking")
    outcome = talks.answered(talk("Hi", "x", "And?", "y"), lambda prompt: f"Hm</think>Yes.{END}")
    assert talks.prompts[0].endswith("<|im_middle|><think>")
    assert "assistant<|im_middle|><think></think>Yes." in talks.prompts[1]
    assert [shown.count("⟦Hm</think>Yes.<|im_end|>⟧") for shown in talks.shown(outcome)] == [1, 1]


def test_a_conversation_ends_with_an_answer_that_is_cut_and_what_becomes_of_that() -> None:
    row, long = (
        talk("Hi", "x", "And?", "y", "Bye", "z"),
        "one two three four five six seven eight nine ten " * 9,
    )
    for policy in ("keep", "drop"):
        talks = Talks("chatml", cut_answers=policy)
        outcome = talks.answered(row, lambda prompt: counting(prompt) if "Answer" not in prompt else long)
        assert len(talks.prompts) == 2
        (shown,) = talks.shown(outcome)
        assert ("one two" in shown) is (policy == "keep")
        assert f"⟦Answer 1.{END}⟧" in shown
        assert sorted(said_of(outcome)) == ["answers-ended", "cut-answer"]
        if policy == "keep":
            assert outcome.samples[0].mask[-40:] == b"\x01" * 40
            assert shown.endswith("⟧") and not shown.endswith(f"{END}⟧")


def test_looping_and_empty_answers_have_fates() -> None:
    row = talk("Hi", "x")
    talks = Talks("chatml")
    assert said_of(talks.answered(row, lambda _: "no no no no " * 99)) == ["looping-answer"]
    assert not talks.answered(row, lambda _: "no no no no " * 99).samples
    kept = Talks("chatml", looping_answers="keep").answered(row, lambda _: "no no no no " * 99)
    assert kept.samples
    assert said_of(kept) == ["looping-answer"]
    for nothing in (END, f" \n{END}", f"<think>\n\n</think>\n\n{END}"):
        outcome = talks.answered(row, lambda _, nothing=nothing: nothing)
        assert said_of(outcome) == ["empty-answer"]
        assert not outcome.samples


def test_a_question_that_fills_the_window_is_dropped_and_one_later_ends_the_conversation() -> None:
    short = len(ids_of(Talks("chatml").asked(talk("Hi", "x")).samples[0]))
    assert said_of(Talks("chatml", max_length=short).asked(talk("Hi", "x"))) == ["no-room"]
    talks = Talks("chatml", max_length=short + 1)
    outcome = talks.answered(talk("Hi", "x"), counting)
    assert outcome.samples[0].tokens == short + 1
    assert said_of(outcome) == ["cut-answer"]
    talks = Talks("chatml", max_length=60)
    outcome = talks.answered(talk("Hi", "x", "Why? " * 60, "y"), counting)
    assert talks.shown(outcome)[0].endswith(f"⟦Answer 1.{END}⟧")
    assert said_of(outcome) == ["no-room"]


CALL = call("weather", {"city": "Rome"})
CHAIN = [
    user("Weather?"),
    assistant(None, CALL),
    turn("tool", "sunny", tool_call_id="weather:0"),
    assistant("It is sunny."),
    *talk("Thanks", "Bye."),
]


def test_conversations_with_tools_end_before_a_result_that_the_target_has_not_asked_for() -> None:
    talks = Talks("chatml_tools")
    outcome = talks.answered(CHAIN, counting, tools=[TOOL])
    assert len(talks.prompts) == 1
    assert "weather" in talks.prompts[0]
    assert said_of(outcome) == ["tool-result"]
    assert len(outcome.samples) == 1
    assert said_of(Talks("chatml_tools", tools="drop").asked(CHAIN, tools=[TOOL])) == ["tool-result"]
    last = Talks("chatml_tools", turns="last")
    outcome = last.answered(CHAIN, counting, tools=[TOOL])
    assert "sunny" in last.prompts[0]
    assert "Bye." not in last.prompts[0]
    assert last.shown(outcome)[0].count("⟦") == 1
    assert said_of(outcome) == []


def test_a_call_of_the_targets_own_ends_the_conversation() -> None:
    talks = Talks("chatml_tools", max_tokens=200)
    rendered = talks.tiny.tokenizer.template.render(
        talks.tiny.tokenizer.template.style.prepare(CHAIN[:2]), [TOOL]
    )
    calling = rendered.rpartition("assistant\n")[2].rstrip()
    outcome = talks.answered(talk("Hi", "x", "And?", "y"), lambda _: calling, tools=[TOOL])
    assert len(talks.prompts) == 1
    assert said_of(outcome) == ["tool-call"]
    assert "⟦" in talks.shown(outcome)[0]


def test_which_turns_are_asked() -> None:
    talks = Talks("chatml")
    # a question without an answer, the last of a conversation, too
    assert len(talks.answered([user("Hi")], counting).samples) == 1
    talks.answered([*talk("Hi", "x"), user("And?")], counting)
    assert len(talks.prompts) == 2
    # a greeting stays
    talks.answered([assistant("Welcome!"), *talk("Hi", "x")], counting)
    assert len(talks.prompts) == 1
    assert "Welcome!" in talks.prompts[0]
    # two turns in a row are one
    talks.answered([user("Hi"), assistant("a"), assistant("b"), *talk("And?", "c")], counting)
    assert len(talks.prompts) == 2
    # what the data marks as context stays
    context = [user("Hi"), {**assistant("Example."), "train": False}, *talk("And?", "x")]
    talks.answered(context, counting)
    assert len(talks.prompts) == 1
    assert "Example." in talks.prompts[0]
    assert said_of(talks.asked([assistant("Hello")])) == ["not-asked"]
    text = talks.reader(Row(0, 0, "", text=json.dumps({"text": "a text"})))
    assert said_of(text) == ["not-asked"]


def test_several_answers_to_one_question_differ_by_key_and_seed() -> None:
    talks = Talks("chatml", n=3, temperature=0.7)
    units = talks.asked(talk("Hi", "x")).samples
    assert [unit.suffix for unit in units] == ["#1", "#2", "#3"]
    assert len({unit.key for unit in units}) == 3
    assert units[0].key == Talks("chatml").asked(talk("Hi", "another")).samples[0].key


def test_the_key_tells_what_follows_but_not_the_answers_of_the_data() -> None:
    talks = Talks("chatml")
    one, other, further = (
        talks.asked(messages).samples[0].key
        for messages in (
            talk("Hi", "x", "And?", "y"),
            talk("Hi", "z", "And?", "w"),
            talk("Hi", "x", "But?", "y"),
        )
    )
    assert one == other != further


def test_a_target_without_chat_template_cannot_be_asked() -> None:
    tiny = Tiny(None)
    with pytest.raises(InputError, match="no chat template"):
        UnitReader(tiny.tokenizer, Data(sources=({"path": "a.jsonl"},)), tiny.settings, Generation())


def test_only_what_was_left_out_may_lack_an_answer() -> None:
    talks = Talks("chatml")
    row = Row(0, 0, "", text=json.dumps({"messages": talk("Hi", "x")}))
    with pytest.raises(InputError, match="has not answered"):
        talks.tokenizer(row)
    (unit,) = talks.reader(row).samples
    parts = (talks.tiny.tokenizer, talks.data, talks.tiny.settings, talks.settings)
    assert said_of(AnswerTokenizer(*parts, talks.answers.get, {unit.key})(row)) == ["not-answered"]


def test_the_end_of_a_turn_may_stay_untrained() -> None:
    talks = Talks("chatml")
    without = talks.tiny.settings.model_copy(update={"train_end_of_turn": False})
    talks.tokenizer = AnswerTokenizer(
        talks.tiny.tokenizer, talks.data, without, talks.settings, talks.answers.get
    )
    assert talks.shown(talks.answered(talk("Hi", "x"), counting))[0].endswith(f"⟦Answer 1.⟧{END}")
