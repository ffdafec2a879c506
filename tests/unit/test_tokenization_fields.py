"""What a row says beside its turns: used, or said to be ignored; and rows that are not to be trained, or are
more than text."""

import pytest

from eagle3_data.config import Source
from eagle3_data.tokenization.reading.layouts import read_row
from eagle3_data.tokenization.reading.rows import DropError
from tiny_tokenizer import Tiny, assistant, talk, turn, user


def read(row, **source):
    return read_row(row, Source(path="talks.jsonl", **source))


def said(row, **source):
    """The conversation's roles and texts."""
    return [(message["role"], message["content"]) for message in read(row, **source).messages]


def notices(row, **source):
    return [(notice.label, notice.count) for notice in read(row, **source).notices]


def drop(row, **source):
    with pytest.raises(DropError) as caught:
        read(row, **source)
    return caught.value.reason, caught.value.detail


PIRATE, HI, ARR = ("system", "You are a pirate."), ("user", "hi"), ("assistant", "arr")
CONVERSATIONS = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "arr"}]

USED = {
    "LLaMA-Factory sharegpt": {"system": PIRATE[1], "conversations": CONVERSATIONS},
    "OpenHermes": {"system_prompt": PIRATE[1], "conversations": CONVERSATIONS, "topic": "sea", "views": 3},
    "beside messages": {"id": 1, "system_message": PIRATE[1], "messages": talk("hi", "arr")},
    "OpenOrca": {"id": "x", "system_prompt": PIRATE[1], "question": "hi", "response": "arr"},
    "Orca DPO": {"system": PIRATE[1], "question": "hi", "chosen": "arr", "rejected": "no"},
    "the same system twice": {"system": PIRATE[1], "messages": [turn(*PIRATE), *talk("hi", "arr")]},
}


@pytest.mark.parametrize("family", USED)
def test_the_row_s_system_prompt_is_used(family):
    assert said(USED[family]) == [PIRATE, HI, ARR]
    assert not [label for label, _ in notices(USED[family]) if label.startswith("ignored-field")]


def test_the_system_prompt_s_field_can_be_named():
    row = {"persona": PIRATE[1], "messages": talk("hi", "arr")}
    assert said(row, system_field="persona") == [PIRATE, HI, ARR]
    assert notices(row) == [("ignored-field persona", 1)]


def test_a_conversation_s_own_system_prompt_comes_first_and_the_other_is_said_to_be_ignored():
    row = {"system": "You are a cook.", "messages": [turn(*PIRATE), *talk("hi", "arr")]}
    assert said(row) == [PIRATE, HI, ARR]
    assert notices(row) == [("ignored-field system", 1)]


@pytest.mark.parametrize("nothing", [None, "", "  ", []])
def test_a_field_that_says_nothing_is_no_loss(nothing):
    row = {"system": nothing, "tools": nothing, "input": nothing, "messages": talk("hi", "arr")}
    assert said(row) == [HI, ARR] and notices(row) == []


@pytest.mark.parametrize(
    ("row", "source", "prompt"),
    [
        (
            {"instruction": "Add.", "input": "1 2", "output": "3", "text": "### Add. 1 2 ### 3"},
            {},
            "Add.\n1 2",
        ),
        ({"instruction": "Add.", "input": "", "output": "3", "system": None}, {}, "Add."),
        ({"instruction": "Add.", "input": "<noinput>", "output": "3"}, {}, "Add."),
        ({"instruction": "Why?", "context": "Rain.", "response": "3", "category": "qa"}, {}, "Why?\nRain."),
        ({"input": "1+2", "output": "3"}, {}, "1+2"),
        (
            {"q": "Add.", "on": "1 2", "a": "3"},
            {"field": "q", "response_field": "a", "input_field": "on"},
            "Add.\n1 2",
        ),
    ],
)
def test_what_an_instruction_is_about_is_part_of_the_prompt(row, source, prompt):
    assert said(row, **source) == [("user", prompt), ("assistant", "3")]
    assert notices(row, **source) == []


def test_history_comes_before_the_prompt():
    row = {"instruction": "And?", "output": "So.", "history": [["hi", "arr"], ["More", "Less"]]}
    assert said(row) == [
        HI,
        ARR,
        ("user", "More"),
        ("assistant", "Less"),
        ("user", "And?"),
        ("assistant", "So."),
    ]
    assert said({**row, "history": talk("hi", "arr")})[:2] == [HI, ARR]
    assert notices({**row, "history": "hi, arr"}) == [("ignored-field history", 1)]


def test_reasoning_beside_a_response_is_the_turn_s():
    row = {"prompt": "hi", "response": "arr", "reasoning_content": "Hm."}
    assert read(row).messages[1]["reasoning_content"] == "Hm."


def test_calls_as_answers_are_tool_calls():
    row = {
        "id": 1,
        "query": "hi",
        "answers": '[{"name": "f", "arguments": {"a": 1}}]',
        "tools": '[{"name": "f"}]',
    }
    conversation = read(row)
    assert conversation.messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert conversation.tools == [{"name": "f"}] and conversation.notices == ()


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "hi", "chosen": "arr", "rejected": "no"},
        {"prompt": talk("hi"), "chosen": [assistant("arr")], "rejected": [assistant("no")]},
        {"prompt": "hi", "chosen": talk("hi", "arr"), "rejected": talk("hi", "no"), "score_chosen": 8.0},
        {"chosen": talk("hi", "arr"), "rejected": talk("hi", "no")},
        {
            "conversations": CONVERSATIONS[:1],
            "chosen": CONVERSATIONS[1],
            "rejected": {"from": "gpt", "value": "no"},
        },
    ],
)
def test_of_two_answers_the_chosen_one_is_trained_and_that_is_said(row):
    assert said(row) == [HI, ARR]
    assert notices(row) == [("chosen-answer", 1)]


def test_a_rejected_answer_is_not_trained():
    row = {"prompt": "hi", "completion": "arr"}
    assert said({**row, "label": True}) == [HI, ARR]
    assert drop({**row, "label": False}) == ("rejected-answer", "field 'label' is false")
    assert drop({"messages": talk("hi", "arr"), "kto_tag": False})[0] == "rejected-answer"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("input", "some text"),
        ("context", "A long article."),
        ("functions", [{"name": "f"}]),
        ("documents", [{"text": "x"}]),
        ("chat_template_kwargs", {"enable_thinking": False}),
        ("Complex_CoT", "Let me think."),
        ("prompt", "another prompt"),
        ("response", "another response"),
        ("history", [["a", "b"]]),
        ("instruction", "another one"),
    ],
)
def test_what_has_a_meaning_and_is_not_used_is_said_to_be_ignored(field, value):
    assert notices({"messages": talk("hi", "arr"), field: value}) == [(f"ignored-field {field}", 1)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("refusal", "I cannot."),
        ("function_calls", "f()"),
        ("reasoning", {"text": "Hm."}),
        ("reasoning_details", [{"text": "Hm."}]),
        ("weight", 0.5),
    ],
)
def test_what_has_a_meaning_in_a_turn_and_is_not_used_is_said_to_be_ignored(name, value):
    turns = [user("hi"), assistant("arr", **{name: value}), user("hi"), assistant("arr", **{name: value})]
    assert notices({"messages": turns}) == [(f"ignored-field {name} of a turn", 2)]
    assert notices({"messages": [user("hi"), assistant("arr", **{name: None})]}) == []


def test_what_is_only_about_a_row_or_repeats_it_is_no_loss():
    about = {
        "id": 1,
        "source": "web",
        "category": "x",
        "score": 0.5,
        "language": "en",
        "model": "m",
        "views": 9,
    }
    repeated = {
        "prompt": "hi",
        "instruction": " hi",
        "response": "arr",
        "answer": "ar",
        "chosen": talk("hi", "arr"),
    }
    assert notices({"messages": talk("hi", "arr"), **about, **repeated, "rejected": talk("hi", "no")}) == []


def test_a_text_has_the_other_fields_in_it_or_they_are_ignored():
    row = {"text": "### hi ### arr", "instruction": "hi", "output": "arr", "system": "Be brief."}
    assert notices(row, trained="all") == [("ignored-field system", 1)]


def test_a_field_that_is_named_and_missing_is_said():
    assert notices({"messages": talk("hi", "arr")}, system_field="persona", tools_field="apis") == [
        ("missing-field system_field persona", 1),
        ("missing-field tools_field apis", 1),
    ]


# Turns that the data excludes


@pytest.mark.parametrize(
    "flag",
    [
        {"weight": 0},
        {"weight": 0.0},
        {"train": False},
        {"training": False},
        {"trainable": False},
        {"loss": False},
        {"loss": "false"},
        {"loss_mask": 0},
        {"masked": True},
        {"mask": 1},
        {"train": None, "weight": 0},
        {"train_detail": [{"begin_offset": 0, "end_offset": 1, "train": False}]},
    ],
)
def test_a_turn_that_the_data_excludes_is_context(flag):
    turns = [user("hi"), assistant("arr", **flag), user("more"), assistant("less")]
    assert notices({"messages": turns}) == [("untrained-turn", 1)]
    assert Tiny("chatml").shown(*turns).count("⟦") == 1
    assert "⟦less" in Tiny("chatml").shown(*turns)
    assert Tiny("chatml").fate({"messages": turns[:2]}) == "untrained"
    sharegpt = [*CONVERSATIONS[:1], {**CONVERSATIONS[1], **flag}, *CONVERSATIONS]
    assert read({"conversations": sharegpt}).untrained == {1}


@pytest.mark.parametrize(
    "flag", [{"weight": 1}, {"weight": None}, {"train": True}, {"mask": False}, {"loss": "1"}]
)
def test_a_turn_that_the_data_includes_is_trained(flag):
    row = {"messages": [user("hi"), assistant("arr", **flag)]}
    assert read(row).untrained == frozenset() and notices(row) == []


def test_flags_count_from_the_conversation_s_own_turns():
    row = {
        "system": PIRATE[1],
        "messages": [user("hi"), assistant("arr", train=False), *talk("more", "less")],
    }
    assert read(row).untrained == {2}
    slim_orca = [{"from": "human", "value": "hi", "weight": 0}, {"from": "gpt", "value": "arr", "weight": 1}]
    assert notices({"conversations": slim_orca}) == []
    assert notices({"messages": [{**user("hi"), "train": True}, assistant("arr")]}) == [("training-flag", 1)]
    assert drop({"messages": talk("hi", "arr"), "weight": 0})[0] == "untrained"


def test_only_trained_turns_make_rows_of_their_own():
    turns = [user("hi"), assistant("arr", train=False), *talk("more", "less")]
    outcome = Tiny("chatml", train_on="each").outcome({"messages": turns})
    assert [sample.suffix for sample in outcome.samples] == [":3"]


# Rows that are more than text


@pytest.mark.parametrize(
    ("row", "detail"),
    [
        ({"image": "a.png"}, "field 'image'"),
        ({"images": ["a.png"]}, "field 'images'"),
        ({"images": [{"bytes": "AA", "path": None}]}, "field 'images'"),
        ({"videos": ["a.mp4"]}, "field 'videos'"),
        ({"audio": {"path": "a.wav"}}, "field 'audio'"),
        ({"messages": talk("<image>\nWhat?", "arr")}, "<image> in turn 0"),
        ({"messages": talk("<video> What?", "arr")}, "<video> in turn 0"),
        ({"messages": talk("<|image_1|> What?", "arr")}, "<|image_1|> in turn 0"),
        (
            {"messages": [user([{"type": "image_url", "image_url": {"url": "x"}}]), assistant("arr")]},
            "a content part of type 'image_url' in turn 0",
        ),
        (
            {"messages": [user([{"type": "text", "text": "a"}, {"type": "input_audio"}]), assistant("arr")]},
            "a content part of type 'input_audio' in turn 0",
        ),
        ({"messages": [{**user("What?"), "image": "a.png"}, assistant("arr")]}, "field 'image' of turn 0"),
    ],
)
def test_a_row_that_is_more_than_text_is_dropped_unless_its_text_is_wanted(row, detail):
    row = {"messages": talk("hi", "arr"), **row}
    assert drop(row) == ("multimodal", detail)
    assert notices(row, multimodal="keep") == [("text-of-multimodal", 1)]
    assert said(row, multimodal="keep")[1] == ARR


def test_what_looks_like_media_and_is_none():
    web = "In RSS, <image><url>x</url></image>; <video src='x'>; a<b>c"
    row = {"images": [], "image": None, "video": {"path": None}, "messages": talk(web, "<image>")}
    assert said(row)[0] == ("user", web) and notices(row) == []


def test_texts_and_prompts_with_media_are_dropped_too():
    assert drop({"text": "hi", "image": "x"}) == ("multimodal", "field 'image'")
    assert drop({"prompt": "<image> hi", "response": "arr"})[0] == "multimodal"
    assert drop({"input_ids": [1, 2], "pixel_values": [0.5]}) == ("multimodal", "field 'pixel_values'")


def test_null_fields_of_a_call_are_those_of_other_rows():
    filled = {"function": None, "name": "f", "arguments": None, "parameters": {"a": 1}, "id": None}
    for calls in ([filled], [{"function": {**filled, "function": None}, "name": None}]):
        message = read({"messages": [user("hi"), assistant(None, *calls)]}).messages[1]
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    mixed = [
        {**CONVERSATIONS[0], "role": None, "content": None},
        {"from": None, "value": None, **assistant("arr")},
    ]
    assert said({"messages": mixed}) == [HI, ARR]
