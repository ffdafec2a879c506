"""Texts to which the template was applied already: their masks are those of the same conversations given as
messages, or there is a reason why not."""

import re
import shutil

import pytest
from transformers import AutoTokenizer

from eagle3_data.errors import InputError
from tiny_tokenizer import TEMPLATES, Tiny, assistant, call, ids_of, talk, tiny_directory, turn, user

ALL = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
NO_TURNS_IN_TEXTS = {"no_end_tokens"}
"""Nothing stands between an answer and a result of a tool."""

WITH_TOOLS = {"chatml_tools", "im_middle", "im_middle_thinking", "reasoning_stripped", "role_tokens"}

PLAIN = {
    "one turn": talk("Hi", "Hello!"),
    "three turns": talk("Hi", "Hello!", "And you?", "Fine, thanks.", "Bye", "Bye."),
    "system prompt": [turn("system", "Be brief."), *talk("Hi", "Hello!", "And you?", "Fine.")],
    "assistant first": [assistant("Welcome!"), *talk("Hi", "Hello!", "And you?", "Fine.")],
    "outer space": talk("Hi", "\n\n  in the middle \n\n", "And you?", "  Fine.\n"),
    "empty answer": talk("Hi", "", "Hm?", "Sorry."),
    "long": talk(*(f"{number} 😀 日本 é" for number in range(12))),
    "question at the end": talk("Hi", "Hello!", "And you?"),
    "markdown": talk("Hi", "# Title\n\n---\n\n```\ncode\n```\n\n", "More", "### A heading\n\n> quote"),
}
ODD = {
    "stop in the answer": talk(
        "Hi", "Say <|im_end|>, <|end|>, <|eot|> or <|endoftext|> to stop.", "And?", "Fine."
    ),
    "stop at the end of the answer": talk("Hi", "I end with <|im_end|>", "And?", "I end with <|endoftext|>"),
    "stop and space": talk("Hi", "I end with <|im_end|>\n", "And?", "I end with <|end|>\n<|endoftext|>"),
    "turns in the answer": talk(
        "Hi",
        "I write <|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nno<|im_end|>",
        "And?",
        "Fine.",
    ),
    "header in the question": talk(
        "What does <|im_start|>assistant\n or <|start|>assistant or <|Assistant|> mean?",
        "It opens.",
        "Ah",
        "Yes.",
    ),
    "header in the answer": talk(
        "Hi", "It is <|im_start|>assistant\n here, and ### assistant:\n there.", "And?", "Fine."
    ),
    "opening in the answer": talk(
        "Hi", "It is <|im_start|>user or <|User|> or <|start|> or ### user: you see.", "And?", "Fine."
    ),
    "opening of nobody": talk(
        "Hi", "So <|im_end|>\n<|im_start|>nobody or <|end|><|start|>nobody", "And?", "Fine."
    ),
    "other end tokens in the answer": talk(
        "Hi", "<|endoftext|>\n\n<|im_user|>", "And?", "Say<|endoftext|>\t", "Hm", "<|return|><|endoftext|>"
    ),
    "header in the system prompt": [turn("system", "It is <|Assistant|>\n<|end|>"), *talk("Hi", "Hello!")],
    "scaffolds": talk("Hi", "\n\n<think></think>", "And?", "<think>\n</think>\n\n<think></think>Fine."),
    "half an opening in the answer": talk(
        "Hi", "It is <|im_end|><|im_user|><|end|>", "And?", "<|im_end|><|im_system|>"
    ),
    "several answers": [user("Hi"), assistant("One."), assistant("Two."), *talk("Ah", "Three.")],
    "several questions": [user("Hi"), user("Hello?"), *talk("There?", "Yes.")],
    "late system prompt": [*talk("Hi", "Hello!"), turn("system", "Be brief."), *talk("And?", "Fine.")],
    "names": [user("Hi") | {"name": "Bob"}, assistant("Hello!") | {"name": "Ann"}, *talk("And?", "Fine.")],
    "empty scaffold": talk("Hi", "<think>\n\n</think>\n\nHello!", "And?", "<think></think>Fine."),
    "reasoning": talk(
        "Hi", "<think>\nGreet.\n</think>\n\nHello!", "And?", "<think>\nBe polite.\n</think>\n\nFine."
    ),
}
CALL, RESULT = call("rain", {"city": "Rome"}), turn("tool", "yes", tool_call_id="rain:0", name="rain")
CALLING = {
    "call and result": [user("?"), assistant(None, CALL), RESULT, assistant("Rain.")],
    "call at the end": [*talk("Hi", "Hello!"), user("?"), assistant(None, CALL)],
    "reasoning and call": [
        user("?"),
        assistant("", CALL, reasoning_content="Ask."),
        RESULT,
        assistant("Rain."),
    ],
}


def rendered(tiny, messages):
    template = tiny.tokenizer.template
    return template.render(template.style.prepare([{"content": None, **message} for message in messages]))


def as_text(tiny, messages):
    """Fate of the rendered conversation given as text, and what it trains, without the BOS that this
    tokenizer puts before texts."""
    text = rendered(tiny, messages)
    outcome = tiny.outcome({"text": text})
    if not outcome.samples:
        assert outcome.dropped[0].detail
        return outcome.dropped[0].reason
    return tiny.show(outcome.samples[0]).removeprefix("" if text.startswith("<|begin|>") else "<|begin|>")


def trained(shown):
    return re.findall("⟦(.*?)⟧", shown, re.DOTALL)


def as_messages(tiny, messages):
    outcome = tiny.outcome({"messages": messages})
    return tiny.show(outcome.samples[0]) if outcome.samples else None


@pytest.mark.parametrize("template", [name for name in ALL if name not in NO_TURNS_IN_TEXTS])
@pytest.mark.parametrize("name", PLAIN)
def test_a_rendered_conversation_is_trained_as_its_messages_are(template, name):
    tiny = Tiny(template)
    messages = PLAIN[name]
    if (template, name) == ("merged_system", "assistant first"):
        assert tiny.fate({"messages": messages}) == "template-refused"
        return
    shown = as_text(tiny, messages)
    expected = as_messages(tiny, messages)
    if name == "question at the end":  # as messages it is left out, so that the answer is the last turn
        assert trained(shown) in (trained(expected), trained(expected.replace("<|return|>", "<|end|>")))
    else:
        assert shown == expected


@pytest.mark.parametrize("template", [name for name in ALL if name not in NO_TURNS_IN_TEXTS])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_conversation_is_trained_as_its_messages_are_or_dropped(template, name):
    tiny = Tiny(template)
    expected = as_messages(tiny, ODD[name])
    if expected is not None:
        assert as_text(tiny, ODD[name]) in (expected, "unclear-turn")


@pytest.mark.parametrize("template", sorted(WITH_TOOLS))
@pytest.mark.parametrize("name", CALLING)
def test_rendered_calls_are_trained_as_their_messages_are(template, name):
    tiny = Tiny(template)
    assert as_text(tiny, CALLING[name]) == as_messages(tiny, CALLING[name])


def test_results_that_nothing_opens_are_never_trained():
    tiny = Tiny("inline_reasoning")
    assert as_text(tiny, CALLING["call and result"]) == "unclear-turn"
    assert as_text(tiny, CALLING["call at the end"]) == as_messages(tiny, CALLING["call at the end"])


def test_a_template_that_does_not_say_where_turns_are_is_an_error():
    tiny = Tiny("no_end_tokens")
    with pytest.raises(InputError, match=r"the chat template .* in a text; set the source's `trained: all`"):
        tiny.outcome({"text": rendered(tiny, talk("Hi", "Hello!", "And you?", "Fine."))})


@pytest.mark.parametrize(
    ("template", "closing"),
    [
        ("chatml", "<|im_end|>"),
        ("headers", "<|eot|>"),
        ("im_middle", "<|im_end|>"),
        ("channels", "<|end|>"),
        ("inline_reasoning", "<|endoftext|>"),
    ],
)
def test_a_turn_that_has_lost_its_end_token_is_dropped_unless_it_is_the_last(template, closing):
    tiny = Tiny(template)
    text = rendered(tiny, talk("Hi", "Hello!", "And you?", "Fine."))
    assert tiny.fate({"text": text.replace("Hello!" + closing, "Hello!")}) == "unclear-turn"
    unfinished = text[: text.index("Fine.") + 3]
    assert tiny.show(tiny.sample({"text": unfinished})).endswith("Fin⟧")


@pytest.mark.parametrize("template", ["role_tokens", "plain"])
def test_without_end_tokens_an_answer_ends_where_the_next_turn_opens(template):
    tiny = Tiny(template)
    assert as_text(tiny, talk("Hi", "Hello!", "And you?", "Fine.")).count("⟦") == 2
    assert (
        as_text(tiny, [user("Hi"), assistant("One."), assistant("Two.")]) == "unclear-turn"
    )  # nobody else speaks between them


def test_a_template_that_shows_only_content_and_closes_nothing_has_turns_in_texts(tmp_path):
    (tmp_path / "bare.jinja").write_text(
        "{% for m in messages %}{{ {'user': '<|User|>', 'assistant': '<|Assistant|>'}.get(m.role,"
        " '<|message|>') }}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|Assistant|>{% endif %}",
        encoding="utf-8",
    )
    tiny = Tiny("no_end_tokens", chat_template=str(tmp_path / "bare.jinja"))
    assert as_text(tiny, PLAIN["three turns"]) == as_messages(tiny, PLAIN["three turns"])


OPENED_BY_QUESTIONS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}<|Assistant|>"
    "{% else %}{{ m.content }}{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize("system", [[], [turn("system", "Be brief.")]])
def test_an_answer_that_nothing_opens_is_left_untrained_and_counted(tmp_path, system):
    (tmp_path / "questions.jinja").write_text(OPENED_BY_QUESTIONS, encoding="utf-8")
    tiny = Tiny("inline_reasoning", chat_template=str(tmp_path / "questions.jinja"))
    text = rendered(tiny, [*system, *PLAIN["assistant first"]])
    outcome = tiny.outcome({"text": text})
    assert trained(tiny.show(outcome.samples[0])) == ["Hello!<|endoftext|>", "Fine.<|endoftext|>"]
    assert [(drop.suffix, drop.reason) for drop in outcome.dropped] == [(":0", "unclear-turn")]
    assert "no header opens" in outcome.dropped[0].detail
    others = tiny.outcome({"text": rendered(tiny, [*system, *PLAIN["three turns"]])})
    assert len(trained(tiny.show(others.samples[0]))) == 3 and not others.dropped
    alone = rendered(tiny, [*system, assistant("Welcome!")])
    assert tiny.fate({"text": alone}) == "unclear-turn"


def test_on_demand_an_answer_that_nothing_opens_costs_the_text(tmp_path):
    (tmp_path / "questions.jinja").write_text(OPENED_BY_QUESTIONS, encoding="utf-8")
    tiny = Tiny("inline_reasoning", chat_template=str(tmp_path / "questions.jinja"), on_unclear_turn="drop")
    assert tiny.fate({"text": rendered(tiny, PLAIN["assistant first"])}) == "unclear-turn"


def test_an_end_token_that_the_template_writes_behind_a_system_prompt_is_no_answer_s(tmp_path):
    (tmp_path / "closed.jinja").write_text(
        OPENED_BY_QUESTIONS.replace("m.role == 'assistant'", "true"), encoding="utf-8"
    )
    tiny = Tiny("inline_reasoning", chat_template=str(tmp_path / "closed.jinja"))
    outcome = tiny.outcome({"text": rendered(tiny, PLAIN["system prompt"])})
    assert len(trained(tiny.show(outcome.samples[0]))) == 2 and not outcome.dropped


def test_space_that_the_template_does_not_write_before_the_next_turn_makes_it_unclear():
    text = "### user:\nHi\n\n### assistant:\nHello!\n### user:\nAnd?\n\n### assistant:\nFine."
    assert Tiny("plain").fate({"text": text}) == "unclear-turn"


def test_the_token_that_opens_the_next_turn_ends_a_turn_of_a_text_if_the_target_says_so(tmp_path):
    shutil.copytree(tiny_directory("role_tokens")[0], tmp_path, dirs_exist_ok=True)
    stops = AutoTokenizer.from_pretrained(tmp_path).convert_tokens_to_ids(["<|User|>", "<|message|>"])
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {stops}}}', encoding="utf-8")
    tiny = Tiny(None, directory=tmp_path)
    for messages in (talk("Hi", "Hello!", "And you?", "Fine."), CALLING["call and result"]):
        assert as_text(tiny, messages) == as_messages(tiny, messages)


def test_an_eos_token_behind_a_closed_turn_is_not_trained():
    text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n<|endoftext|>"
    assert (
        Tiny("chatml")
        .show(Tiny("chatml").sample({"text": text}))
        .endswith("⟦Hello!<|im_end|>⟧\n<|endoftext|>")
    )


def test_the_end_token_of_a_text_is_left_out_on_demand():
    tiny = Tiny("chatml", train_end_of_turn=False)
    assert as_text(tiny, PLAIN["three turns"]) == as_messages(tiny, PLAIN["three turns"])


def test_a_text_with_its_own_bos_keeps_it():
    tiny = Tiny("chatml")
    bare = "<|im_start|>assistant\nHello!<|im_end|>\n"
    assert ids_of(tiny.sample({"text": "<|begin|>" + bare})) == ids_of(tiny.sample({"text": bare}))
