"""Rows in all their forms to conversations, texts and token ids; and what is said of rows that are of
none."""

import json

import pytest

from eagle3_data.config import Source
from eagle3_data.tokenization.masking.style import MessageStyle
from eagle3_data.tokenization.reading.layouts import own_name, read_row
from eagle3_data.tokenization.reading.rows import (
    BadRowError,
    Conversation,
    DropError,
    FormattedText,
    TokenizedRow,
)
from tiny_tokenizer import Tiny, assistant, call, talk, turn, user


def read(row, **source):
    return read_row(row, Source(path="talks.jsonl", **source))


def complaint(row, **source):
    with pytest.raises(BadRowError) as caught:
        read(row, **source)
    return str(caught.value)


def test_sharegpt_with_its_role_names():
    turns = [
        ("system", "Be brief."),
        ("human", "Hi"),
        ("gpt", "Hello!"),
        ("observation", "4"),
        ("user", "Bye"),
        ("chatgpt", "Bye."),
    ]
    row = {"conversations": [{"from": role, "value": value} for role, value in turns]}
    assert [message["role"] for message in read(row).messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
        "assistant",
    ]
    assert read(row, layout="sharegpt") == read(row)


def test_sharegpt_function_calls_are_tool_calls():
    row = {
        "conversations": [
            {"from": "human", "value": "?"},
            {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'},
        ]
    }
    assert read(row).messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}


def test_openai_messages_with_parts_null_content_and_calls():
    row = {
        "messages": [
            user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
            assistant(None, call("f", "{}")),
            turn("tool", {"k": "é"}),
        ]
    }
    question, answer, result = read(row).messages
    assert question["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert answer["content"] is None
    assert result["content"] == '{"k": "é"}'


def test_the_older_function_call_and_flat_calls():
    for field in (
        {"function_call": {"name": "f", "arguments": "{}"}},
        {"tool_calls": [{"name": "f", "arguments": "{}"}]},
    ):
        message = read({"messages": [user("?"), {"role": "assistant", "content": None, **field}]}).messages[1]
        assert message["tool_calls"] == [
            {"id": "", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        ]


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_given_under_both_names(name):
    message = read({"messages": [user("?"), assistant("!", **{name: "Hm."})]}).messages[1]
    assert message["reasoning"] == message["reasoning_content"] == "Hm."


def test_the_field_of_the_turns_can_be_named():
    assert read({"log": talk("Hi", "Ho"), "messages": "none"}, field="log") == Conversation(
        read({"messages": talk("Hi", "Ho")}).messages
    )
    assert read({"traj": talk("Hi", "Ho")}) == read({"messages": talk("Hi", "Ho")})


def test_turns_and_tools_may_be_json_text():
    tools = [{"type": "function", "function": {"name": "f"}}]
    row = {"messages": json.dumps(talk("Hi", "Ho")), "tools": json.dumps(tools)}
    assert read(row) == Conversation(read({"messages": talk("Hi", "Ho")}).messages, tools)


def test_prompt_and_response():
    expected = read({"messages": talk("Hi", "Ho")})
    assert read({"prompt": "Hi", "response": "Ho"}) == expected
    assert read({"prompt": talk("Hi"), "completion": [assistant("Ho")]}) == expected
    assert read({"q": "Hi", "a": "Ho"}, layout="prompt_response", field="q", response_field="a") == expected
    assert read({"q": "Hi", "a": "Ho"}, field="q", response_field="a") == expected
    assert read({"system": "Be brief.", "prompt": "Hi", "response": "Ho"}).messages[0]["role"] == "system"


def test_text_and_token_ids():
    assert read({"text": "Hi"}) == FormattedText("Hi")
    assert read({"body": "Hi"}, field="body") == FormattedText("Hi")
    assert read({"input_ids": [5, 6]}) == TokenizedRow([5, 6], b"\x01\x01", whole=True)
    assert read({"input_ids": [5, 6], "loss_mask": [0, True]}) == TokenizedRow([5, 6], b"\x00\x01")
    assert read(
        {"ids": [5, 6], "mask": [0, 1]}, layout="tokens", field="ids", mask_field="mask"
    ) == TokenizedRow([5, 6], b"\x00\x01")


@pytest.mark.parametrize("name", ["loss_mask", "assistant_masks", "completion_mask"])
def test_a_mask_is_found_under_its_usual_names(name):
    assert read({"input_ids": [5, 6, 7], name: [0, 1, 1], "attention_mask": [1, 1, 1]}) == TokenizedRow(
        [5, 6, 7], b"\x00\x01\x01"
    )


def test_labels_train_what_they_do_not_ignore():
    assert read({"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}) == TokenizedRow([5, 6, 7], b"\x00\x01\x01")
    assert read({"ids": [5, 6], "targets": [-100, 6]}, field="ids", mask_field="targets") == TokenizedRow(
        [5, 6], b"\x00\x01"
    )
    assert read({"ids": [5, 6], "targets": [5, 6]}, field="ids", mask_field="targets") == TokenizedRow(
        [5, 6], b"\x01\x01"
    )
    assert read({"input_ids": [5, 6], "labels": [5, 6], "loss_mask": [0, 1]}) == TokenizedRow(
        [5, 6], b"\x00\x01"
    )


@pytest.mark.parametrize(
    ("row", "source", "words"),
    [
        (
            {"mask": [0, 1]},
            {"mask_field": "maskk"},
            "there is no field 'maskk'; the fields are 'input_ids', 'mask'; set the source's `mask_field`",
        ),
        ({"mask": None}, {"mask_field": "mask"}, "field 'mask' is null"),
        ({"loss_mask": None}, {}, "field 'loss_mask' is null"),
        (
            {"train_mask": [0, 1]},
            {},
            "field 'train_mask' looks like a loss mask; name it in the source's `mask_field`, or take it out",
        ),
        ({"Target_Labels": [0, 1]}, {}, "field 'Target_Labels' looks like a loss mask"),
        ({"label": None}, {}, "field 'label' looks like a loss mask"),
        (
            {"labels": [6, -100]},
            {},
            "field 'labels' is not a list of labels: token 0 has 6, neither its own id nor -100",
        ),
        ({"labels": [-100, 5]}, {}, "field 'labels' is not a list of labels: token 1 has 5"),
        ({"labels": [-100, None]}, {}, "field 'labels' is not a list of integers"),
        ({"labels": [-100]}, {}, "field 'labels' has 1 elements for 2 token ids"),
        ({"attention_mask": [1, 0]}, {}, "field 'attention_mask' has zeros, so the row is padded"),
    ],
)
def test_without_a_mask_nothing_is_trained_that_another_field_may_exclude(row, source, words):
    assert words in complaint({"input_ids": [5, 6], **row}, layout="tokens", **source)


def test_what_only_sounds_like_a_mask_is_none():
    row = {
        "input_ids": [5, 6],
        "label": "good",
        "labels_of": [1],
        "special_tokens_mask": [0, 0],
        "attention_mask": [1, 1],
    }
    assert read(row) == TokenizedRow([5, 6], b"\x01\x01", whole=True)


def test_a_field_that_is_null_is_passed_over():
    conversation = read({"messages": talk("Hi", "Ho")})
    assert read({"messages": None, "conversations": talk("Hi", "Ho")}) == conversation
    assert read({"messages": None, "prompt": "Hi", "response": None, "completion": "Ho"}) == conversation
    assert read({"messages": None, "input_ids": None, "text": "Hi"}) == FormattedText("Hi")
    assert "field 'messages' is null" in complaint({"messages": None, "id": 1})


def test_roles_can_be_mapped():
    row = {"messages": [turn("customer", "Hi"), turn("agent", "Ho")]}
    roles = {"customer": "user", "agent": "assistant"}
    assert [message["role"] for message in read(row, roles=roles).messages] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([], 'the row is a list; rows must be JSON objects, such as {"messages": [...]}'),
        ("Hi", "the row is a str; rows must be JSON objects"),
        (
            {"chat": [], "id": 1},
            "no field 'messages' or 'conversations' or 'conversation' or 'traj'; the fields are 'chat', 'id'",
        ),
        ({"messages": 5}, "the turns are of type int"),
        ({"messages": ["Hi"]}, "turn 0 is of type str"),
        ({"messages": [{"content": "Hi"}]}, "turn 0 has no 'role'"),
        (
            {"messages": [user("Hi"), turn("wizard", "Ho")]},
            "turn 1 has the unknown role 'wizard'; map it in the source's `roles`",
        ),
        ({"messages": [{"role": "user"}]}, "turn 0 has no 'content'"),
        ({"messages": [user(None)]}, "turn 0 has null content"),
        ({"messages": [user(5)]}, "content of type int"),
        (
            {"messages": [user([{"type": "file", "file": "x"}])]},
            "content part of type 'file'; only text",
        ),
        (
            {"messages": [user([{"type": "text", "text": None}])]},
            "a content part of type 'text' whose text is a NoneType; expected a string",
        ),
        ({"messages": [user([5])]}, "content part of type 'int'; only text"),
        ({"messages": [assistant(None, {"id": "1"})]}, "tool call without a function name"),
        ({"messages": [assistant(None, call("f", 5))]}, "arguments of type int"),
        ({"messages": [turn("assistant", None, tool_calls="f()")]}, "'tool_calls' of type str"),
        ({"messages": talk("Hi"), "tools": "{"}, "field 'tools' whose text is not JSON"),
        ({"messages": talk("Hi"), "tools": {"f": 1}}, "field 'tools' is not a list"),
        ({"conversations": [{"from": "human"}]}, "turn 0 has no 'value'"),
        ({"prompt": "Hi"}, "no field 'response' or 'completion'"),
        ({"prompt": 5, "response": "Ho"}, "the user's part is of type int"),
        ({"text": 5}, "the text is of type int"),
        ({"input_ids": [1, -2]}, "not a list of integers"),
        ({"input_ids": [1, 2.5]}, "not a list of integers"),
        ({"input_ids": [1, 2], "loss_mask": [1]}, "has 1 elements for 2 token ids"),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, "not a list of 0 and 1"),
    ],
)
def test_a_bad_row_s_fault_is_named(row, words):
    assert words in complaint(row)


@pytest.mark.parametrize("row", [{"messages": []}, {"text": " \n"}, {"input_ids": []}])
def test_a_row_of_nothing_is_dropped(row):
    with pytest.raises(DropError, match="empty"):
        read(row)


def test_a_row_s_own_name():
    assert [
        own_name(row) for row in ({"id": "a"}, {"question_id": 81}, {"id": None}, [], {"id": "half \ud83d"})
    ] == ["a", "81", "", "", "half ?"]


def test_arguments_as_text_and_as_object_in_one_file_give_the_same_sample():
    for template in ("chatml_tools", "im_middle", "inline_reasoning"):
        tiny = Tiny(template)
        forms = ({"city": "Romé", "n": 2}, '{"city": "Romé", "n": 2}')
        samples = [
            tiny.sample({"messages": [user("?"), assistant(None, call("f", arguments))]})
            for arguments in forms
        ]
        assert samples[0] == samples[1], template


def test_arguments_that_are_no_object_are_a_fate_where_the_template_needs_one():
    assert (
        Tiny("chatml_tools").fate({"messages": [user("?"), assistant(None, call("f", "not JSON"))]})
        == "template-refused"
    )
    assert (
        Tiny("inline_reasoning").fate({"messages": [user("?"), assistant(None, call("f", "not JSON"))]})
        == "kept"
    )


def shows(call_text):
    """A template, as it were, that shows of a conversation only its call, as `call_text` writes it."""

    def render(messages, _tools):
        calling = [message for message in messages if "tool_calls" in message]
        return "".join(call_text(message["content"], message["tool_calls"][0]) for message in calling)

    return render


def strict_about_ids(content, call):
    return f"{content} {json.dumps(call)}" if len(call["id"]) == 9 and call["id"].isalnum() else ""


@pytest.mark.parametrize(
    ("call_text", "style"),
    [
        (lambda content, call: "", MessageStyle()),
        (strict_about_ids, MessageStyle(null_content="", short_ids=True)),
        (lambda content, call: str(call), MessageStyle(arguments_as_object=False, null_content=None)),
        (
            lambda content, call: call["id"] + call["function"]["arguments"]["k"],
            MessageStyle(null_content=None, name_in_id=True),
        ),
    ],
)
def test_the_style_of_calls_is_learned_from_renderings(call_text, style):
    def render(messages, tools):
        try:
            return shows(call_text)(messages, tools)
        except TypeError:  # as a template that wants an object and is given a text
            return ""

    assert MessageStyle.learn(render) == style
