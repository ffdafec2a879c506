"""Masks with templates that have what real ones have and simple ones have not. Each is judged by an oracle
that shares no code with the product, and some are written out."""

import pytest

import mask_oracle as oracle
from tiny_tokenizer import Tiny, assistant, call, ids_of, talk, turn, user

CALL = call("weather", {"city": "Rome"})
RESULT = turn("tool", "sunny", tool_call_id="weather:0")
CHAIN = [user("Weather?"), assistant(None, CALL), RESULT, assistant("It is sunny."), *talk("Thanks", "Bye.")]
TALKS = {
    "turns": talk("Hi", "Hello!", "And you?", "Fine, thanks."),
    "system prompt": [turn("system", "Be brief."), *talk("Hi", "Hello!")],
    "same answers": talk("a?", "Yes.", "b?", "Yes.", "c?", "Yes."),
    "outer space": talk("Hi", "\n\n  in the middle \n\n", "And?", "  Fine.\n"),
    "echo": talk("Say yes", "yes", "yes", "yes"),
    "control texts": talk("Say <|end|><|start|>assistant", "No <|im_end|> here.", "And?", "Fine."),
    "calls": CHAIN,
    "call at the end": CHAIN[:2],
    "empty result": [user("?"), assistant(None, CALL), RESULT | {"content": ""}, assistant("So.")],
    "result without letters": [user("?"), assistant(None, CALL), RESULT | {"content": "[]"}, assistant("No")],
    "text beside a call": [user("?"), assistant("Let me see.", CALL), RESULT, assistant("Sunny.")],
    "no arguments": [user("?"), assistant(None, call("now", {})), RESULT, assistant("Noon.")],
    "quotes": [user("?"), assistant(None, call("f", {"k": 'Say "hi"\n\\ é'})), RESULT, assistant("Done.")],
    "reasoning": [user("2+2?"), assistant("Four.", thinking="Two and two."), *talk("Sure?", "Yes.")],
    "empty reasoning in the data": talk("Hi", "<think>\n\n</think>\n\nHello!", "And?", "Fine."),
    "inline reasoning": talk("Hi", "<think>\nGreet.\n</think>\n\nHello!", "And?", "<think>So</think>Fine."),
    "lists": [user("?"), assistant(None, call("f", {"a": ["x", {"b": "y"}]})), RESULT, assistant("So")],
}  # fmt: skip
KINDS = (
    *("two_closings", "unclosed_calls", "short_ids", "split_content", "several_messages", "late_text"),
    *(
        "chatml",
        "chatml_tools",
        "channels",
        "headers",
        "im_middle",
        "im_middle_thinking",
        "reasoning_stripped",
    ),
    *("inline_reasoning", "merged_system", "role_tokens", "drops_text_beside_calls", "plain"),
)


def verdicts(tiny, messages):
    """What the oracle says of each turn, and the reasons for which turns are not trained."""
    outcome = tiny.outcome({"messages": messages})
    reasons = [drop.reason for drop in outcome.dropped]
    if not outcome.samples:
        return {}, reasons
    template = tiny.tokenizer.template
    ready = template.style.prepare([{"content": None, **message} for message in tiny_messages(messages)])

    def render(part, prompt):
        return template.attempt(*part, generation_prompt=prompt) or None

    text = render(ready, False)
    sample = outcome.samples[0]
    runs = oracle.runs_of(ids_of(sample), sample.mask, tiny.tokenizer.backend.decode)
    trained = oracle.trained_letters(runs, text)
    assert trained is not None
    wanted = [index for index, message in enumerate(ready) if message["role"] == "assistant"]
    found = oracle.judge(ready, wanted, trained, text, render, tiny.rows.stops)
    assert found is not None
    return found, reasons


def tiny_messages(messages):
    """As the rows are read: reasoning under all its names."""
    return [
        message | (dict.fromkeys(oracle.REASONING, message["thinking"]) if "thinking" in message else {})
        for message in messages
    ]


@pytest.mark.parametrize("template", KINDS)
@pytest.mark.parametrize("name", TALKS)
def test_no_mask_is_wrong(template, name):
    found, reasons = verdicts(Tiny(template), TALKS[name])
    if (template, name) == ("unclosed_calls", "call at the end"):
        found = {}  # the oracle takes the end of the instructions behind it for the turn's: see below
    assert set(found.values()) <= {oracle.RIGHT, oracle.HIDDEN, oracle.UNTRAINED}
    if oracle.UNTRAINED in found.values():
        assert set(reasons) & {"not-shown", "unclear-turn", "template-refused"}


@pytest.mark.parametrize(
    "template", ["two_closings", "unclosed_calls", "short_ids", "split_content", "several_messages"]
)
@pytest.mark.parametrize("name", ["turns", "same answers", "outer space", "echo"])
def test_plain_turns_are_all_trained(template, name):
    found, _ = verdicts(Tiny(template), TALKS[name])
    assert set(found.values()) == {oracle.RIGHT}


def test_all_that_closes_a_turn_is_trained_up_to_the_target_s_stop_token():
    assert (
        Tiny("two_closings")
        .shown(*talk("Hi", "Hello!", "And?", "Fine."))
        .endswith(
            "<|start|>assistant<|message|>⟦Hello!<|end|><|endoftext|>⟧<|start|>user<|message|>And?<|end|>"
            "<|start|>assistant<|message|>⟦Fine.<|end|><|endoftext|>⟧"
        )
    )


def test_the_stop_token_of_another_speaker_ends_no_call():
    assert Tiny("unclosed_calls").shown(*CHAIN[:4]) == (
        "<|header|>user<|end_header|>Weather?<|endoftext|><|header|>assistant<|end_header|>⟦\nAction: ["
        '{"name": "weather", "arguments": {"city": "Rome"}}]⟧\n<|header|>system<|end_header|><results>sunny'
        "</results><|endoftext|><|header|>assistant<|end_header|>⟦It is sunny.<|endoftext|>⟧"
        "<|header|>system<|end_header|>Be careful.<|endoftext|>"
    )


def test_instructions_behind_the_last_message_are_no_part_of_a_call():
    assert (
        Tiny("unclosed_calls")
        .shown(*CHAIN[:2])
        .endswith(
            '⟦\nAction: [{"name": "weather", "arguments": {"city": "Rome"}}]⟧\n'
            "<|header|>system<|end_header|>Be careful.<|endoftext|>"
        )
    )


def test_call_ids_get_the_form_that_the_template_demands_and_that_is_said():
    tiny = Tiny("short_ids")
    outcome = tiny.outcome({"messages": CHAIN[:4]})
    shown = tiny.show(outcome.samples[0])
    identity = shown.partition('"id": "')[2][:9]
    assert identity.isalnum()
    assert shown == (
        '<|User|>Weather?<|Assistant|>⟦<|tool_calls|>[{"name": "weather", "arguments": {"city": "Rome"}, '
        f'"id": "{identity}"}}]<|endoftext|>⟧<|call|>sunny of {identity}<|/call|>⟦It is sunny.<|endoftext|>⟧'
    )
    assert [(notice.code, notice.count) for notice in outcome.notices] == [("rewritten-call-id", 1)]


def test_absent_content_is_given_as_the_template_takes_it_where_turns_follow():
    found, reasons = verdicts(Tiny("split_content"), CHAIN)
    assert set(found.values()) == {oracle.RIGHT}
    assert reasons == []


def test_reasoning_named_thinking_is_trained_with_the_turn():
    assert Tiny("several_messages").shown(user("2+2?"), assistant("Four.", thinking="Two and two.")) == (
        "<|start|>user<|message|>2+2?<|end|><|start|>assistant⟦ to=self<|message|>Two and two.<|end|>"
        "<|start|>assistant to=user<|message|>Four.<|return|>⟧"
    )


def test_text_that_the_template_moves_behind_a_result_is_not_trained_nor_is_the_result():
    tiny = Tiny("late_text")
    outcome = tiny.outcome({"messages": TALKS["text beside a call"]})
    assert tiny.show(outcome.samples[0]).endswith("⟦Sunny.<|eot|>⟧")
    assert tiny.show(outcome.samples[0]).count("⟦") == 1
    assert [(drop.suffix, drop.reason) for drop in outcome.dropped] == [(":1", "not-shown")]
