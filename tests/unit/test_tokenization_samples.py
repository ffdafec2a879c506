"""Rows to samples: limits, layouts without a conversation, and that every row has a fate."""

import pytest

from eagle3_data.config import Source
from eagle3_data.errors import InputError
from eagle3_data.tokenization.reading.sources import is_drawn
from tiny_tokenizer import Tiny, assistant, call, ids_of, talk, user

ROW = {"messages": talk("Hi", "Hello, how are you?")}
LENGTH = len(ids_of(Tiny("chatml").sample(ROW)))


@pytest.mark.parametrize(("limit", "truncated"), [(LENGTH + 1, False), (LENGTH, False), (LENGTH - 1, True)])
def test_a_sample_is_cut_only_beyond_the_limit(limit, truncated):
    sample = Tiny("chatml", max_length=limit).sample(ROW)
    assert sample.truncated == truncated
    assert sample.tokens == len(ids_of(sample)) == min(limit, LENGTH)


@pytest.mark.parametrize(("limit", "fate"), [(LENGTH, "kept"), (LENGTH - 1, "too-long")])
def test_a_longer_sample_is_dropped_on_demand(limit, fate):
    assert Tiny("chatml", max_length=limit, too_long="drop").fate(ROW) == fate


def test_a_sample_whose_trained_tokens_are_all_cut_is_dropped():
    start = Tiny("chatml").sample(ROW).mask.index(1)
    assert Tiny("chatml", max_length=start).fate(ROW) == "no-trained-token"
    assert Tiny("chatml", max_length=start + 1).sample(ROW).trained_tokens == 1


def test_a_cut_may_part_a_character():
    tiny = Tiny("chatml")
    whole = tiny.sample({"messages": talk("Hi", "日本")})
    cut = Tiny("chatml", max_length=whole.mask.index(1) + 2).sample({"messages": talk("Hi", "日本")})
    assert ids_of(cut) == ids_of(whole)[: cut.tokens]


@pytest.mark.parametrize(
    ("ids", "mask", "fate"),
    [
        ([7], [1], "no-trained-token"),  # nothing precedes it
        ([7, 8], [1, 0], "no-trained-token"),
        ([7, 8], [0, 0], "no-trained-token"),
        ([7, 8], [0, 1], "kept"),
        ([7, 300], [0, 1], "kept"),
        ([7, 1 << 20], [0, 1], "outside-vocabulary"),
        ([7, 1 << 70], [0, 1], "outside-vocabulary"),
    ],
)
def test_token_ids_made_elsewhere(ids, mask, fate):
    assert Tiny("chatml").fate({"input_ids": ids, "loss_mask": mask}) == fate


def test_token_ids_are_taken_as_they_are():
    sample = Tiny(None).sample({"input_ids": [9, 8, 7], "loss_mask": [0, 1, 0]})
    assert (ids_of(sample), sample.mask) == ([9, 8, 7], b"\x00\x01\x00")


def test_formatted_text_is_trained_where_the_template_says_that_the_assistant_speaks():
    tiny = Tiny("chatml")
    conversation = tiny.sample({"messages": talk("Hi", "Hello!", "And you?", "Fine.")})
    text = tiny.tokenizer.backend.decode(ids_of(conversation))
    assert tiny.show(tiny.sample({"text": text})) == "<|begin|>" + tiny.show(
        conversation
    )  # this tokenizer puts a BOS before texts


def test_formatted_text_with_its_own_bos_gets_no_second_one():
    tiny = Tiny("headers")
    conversation = tiny.sample({"messages": talk("Hi", "Hello!")})
    assert tiny.sample({"text": tiny.tokenizer.backend.decode(ids_of(conversation))}) == conversation


def test_formatted_text_that_stops_inside_a_turn_is_trained_to_its_end():
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"
    assert Tiny("chatml").show(Tiny("chatml").sample({"text": text})).endswith("assistant\n⟦Hello⟧")


def test_text_without_turns_is_dropped_unless_all_of_it_is_to_be_trained():
    assert Tiny("chatml").fate({"text": "Once upon a time."}) == "no-assistant-turn"
    tiny = Tiny("chatml", source={"trained": "all"})
    assert tiny.show(tiny.sample({"text": "Once upon a time."})) == "<|begin|>⟦Once upon a time.⟧"


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (ROW, r"no chat template, and conversations need one; put the model's chat_template\.jinja"),
        ({"text": "Hi"}, "or set the source's `trained: all`"),
    ],
)
def test_a_missing_chat_template_is_an_error_only_where_one_is_needed(row, words):
    with pytest.raises(InputError, match=words):
        Tiny(None).outcome(row)
    assert Tiny(None, source={"trained": "all"}).fate({"text": "Hello"}) == "kept"


def test_a_template_that_opens_results_with_nothing_shows_no_turns_in_a_text():
    with pytest.raises(InputError, match="set the source's `trained: all`"):
        Tiny("no_end_tokens").outcome({"text": "<|User|>Hi<|Assistant|>Ho"})


def test_a_chat_template_can_be_given_in_a_file(tmp_path):
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}{% if"
        " add_generation_prompt %}<assistant>{% endif %}"
    )
    (tmp_path / "mine.jinja").write_text(template, encoding="utf-8")
    tiny = Tiny("chatml", chat_template=str(tmp_path / "mine.jinja"))
    assert tiny.shown(*talk("Hi", "Ho")) == "<user>Hi<|endoftext|><assistant>⟦Ho<|endoftext|>⟧"


def test_a_template_that_is_no_jinja_is_an_error(tmp_path):
    (tmp_path / "broken.jinja").write_text("\n{% for m in messages %}{{ m.content }}", encoding="utf-8")
    with pytest.raises(InputError, match="the chat template is not valid Jinja: line 2: "):
        Tiny("chatml", chat_template=str(tmp_path / "broken.jinja"))


@pytest.mark.parametrize(
    "row",
    [
        "{",
        b"\xff\xfe",
        "[" * 100_000,
        "null",
        '{"messages": [{"role": "user", "content": "\\ud83d"}, {"role": "assistant", "content": "ok"}]}',
        '{"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "\\ud83d"}]}',
    ],
)
def test_a_row_that_cannot_be_read_is_a_fate_and_names_its_place(row):
    outcome = Tiny("chatml").outcome(row)
    assert outcome.dropped[0].reason == "bad-row"
    assert outcome.error.startswith("line 1: ")


def test_one_bad_turn_of_many_costs_only_its_own_row():
    swallowed = [user("?"), assistant("Let me see.", call("f", {"a": 1})), user("And?"), assistant("Done.")]
    outcome = Tiny("drops_text_beside_calls", train_on="each").outcome({"messages": swallowed})
    assert [sample.suffix for sample in outcome.samples] == [":3"]
    assert [(drop.suffix, drop.reason) for drop in outcome.dropped] == [(":1", "not-shown")]


def test_a_weight_draws_the_same_share_in_every_run():
    source = Source(path="talks.jsonl", weight=0.25)
    drawn = [index for index in range(2000) if is_drawn(source, index)]
    assert 0.22 < len(drawn) / 2000 < 0.28
    assert drawn[:5] == [0, 3, 6, 7, 13]


def test_a_row_that_finds_no_memory_is_named(monkeypatch):
    tiny = Tiny("chatml")

    def encode(text, borders):
        raise MemoryError

    monkeypatch.setattr(tiny.tokenizer.backend, "encode", encode)
    with pytest.raises(InputError, match=r"talks\.jsonl, line 1: not enough memory to tokenize this row"):
        tiny.outcome({"messages": talk("Hi", "Ho")})
