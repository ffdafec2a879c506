"""Compiled chat templates: what they remember changes nothing of what they write."""

from datetime import date

import pytest
from jinja2.exceptions import SecurityError, TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from eagle3_data.tokenization.masking.compiled import JSON_TEXTS, compile_template
from eagle3_data.tokenization.masking.template import ChatTemplate

VALUES = (
    {"b": [1, {"a": "é\n"}], "a": None},
    {"a": None, "b": [1, {"a": "é\n"}]},
    {9: "x", 10: "y"},
    {"9": "x", "10": "y"},
    {1: "x", "1": "y"},
    [0.1, 1e300, float("inf"), True],
    {},
)
FILTERS = (
    "tojson",
    "tojson(indent=4)",
    "tojson(indent=2)",
    "tojson(false, 2)",
    "tojson(indent=2, ensure_ascii=true)",
    "tojson(indent=2, separators=[',', '='])",
    "tojson(indent=1, sort_keys=m.sorted)",
)


@pytest.mark.parametrize("written", FILTERS)
def test_json_is_that_of_transformers_the_first_and_the_second_time(written):
    source = "{% for m in messages %}{{ m.value | " + written + " }}\n{% endfor %}"
    messages = [
        {"role": "user", "value": value, "sorted": sorts}
        for value in VALUES
        for sorts in (False, not isinstance(value, dict) or len(set(map(type, value))) == 1)
    ]
    expected = render_jinja_template([messages], chat_template=source)[0][0]
    template = compile_template(source)
    assert [template.render(messages=messages) for _ in range(2)] == [expected, expected]


def test_indented_json_is_right_behind_more_texts_than_are_remembered():
    template = compile_template("{{ value | tojson(indent=1) }}")
    for number in (*range(JSON_TEXTS + 2), 0, JSON_TEXTS):
        assert template.render(value={"k": number}) == f'{{\n "k": {number}\n}}'


@pytest.mark.parametrize("attribute", ["append", "__class__"])
def test_what_the_sandbox_refuses_it_refuses_again(attribute):
    template = compile_template("{{ value." + attribute + "() }}")
    for _ in range(2):
        with pytest.raises(SecurityError):
            template.render(value=[])


def test_an_attribute_is_refused_by_the_type_of_its_owner():
    template = compile_template("{{ value.clear() }}")

    class Harmless:
        def clear(self):
            return "cleared"

    for _ in range(2):
        assert template.render(value=Harmless()) == "cleared"
        with pytest.raises(SecurityError):
            template.render(value={})


def test_separators_are_known_of_a_template_that_refuses_conversations_without_tools():
    template = ChatTemplate(
        "{{ tools[0] | tojson }}{% for m in messages %}<turn>{{ m.content }}{% endfor %}",
        {},
        today=date(2025, 1, 1),
        stop_texts=[],
        added_tokens=["<turn>", "<other>"],
    )
    assert template.control_tokens == ["<turn>"]


@pytest.mark.parametrize("name", ["a", "gone", "get", "items", "keys", "none"])
def test_what_is_read_of_a_message_is_what_transformers_reads(name):
    source = "{% for m in messages %}{{ m." + name + " is defined }} {{ m." + name + " is none }} "
    source += (
        "{{ m." + name + " is callable }}{% if m." + name + " is string %}{{ m." + name + " }}{% endif %}"
    )
    source += "{% endfor %}"
    messages = [{"a": "x", "none": None}, {"get": "y", "items": "z"}]
    expected = render_jinja_template([messages], chat_template=source)[0][0]
    assert compile_template(source).render(messages=messages) == expected


ATTRIBUTES = (
    "{{ m.absent }}",
    "{{ m.absent is defined }}{{ m.absent == m.other }}",
    "{{ m.absent.more }}",
    "{{ m.absent + 1 }}",
    "{{ m.items() | list }}{{ m.get('role') }}",
    "{{ loop.index0 }}{{ loop.first }}{{ loop.previtem.role }}{{ loop.absent is defined }}",
    "{{ loop.absent.more }}",
    "{{ loop._iterable is defined }}",
    "{% set ns.b = ns.a + 1 %}{{ ns.a }}{{ ns.b }}{{ ns.absent is defined }}",
    "{{ ns.absent.more }}",
    "{{ ns._Namespace__attrs is defined }}{{ ns.__init__ is defined }}",
    "{{ loop.__init__.__globals__ }}",
)


@pytest.mark.parametrize("read", ATTRIBUTES)
def test_attributes_are_read_as_jinja_reads_them(read):
    source = "{% set ns = namespace(a=1) %}{% for m in messages %}" + read + "{% endfor %}"
    messages = [{"role": "user", "content": "x"}, {"role": "tool"}]

    def outcome(render):
        try:
            return render()
        except TemplateError as error:
            return type(error), str(error)

    expected = outcome(lambda: render_jinja_template([messages], chat_template=source)[0][0])
    template = compile_template(source)
    assert [outcome(lambda: template.render(messages=messages)) for _ in range(2)] == [expected] * 2
