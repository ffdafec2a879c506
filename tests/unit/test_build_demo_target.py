"""Demo targets and demo conversations: what the rest of the workflow relies on when it runs on them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import (
    AutoTokenizer,
    DeepseekV3ForCausalLM,
    Kimi_K25ForConditionalGeneration,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from eagle3_data.demo import tiny_kimi, tiny_llama, training
from eagle3_data.demo.build import TARGETS, build_demo_target, read_conversations
from eagle3_data.demo.tokenizer import encode_conversations, train_tokenizer
from eagle3_data.errors import InputError
from eagle3_data.records import read_json
from eagle3_data.target import describe_target
from eagle3_data.target.layers import default_layers, resolve_layers
from integration.fixtures import SHARED_DATA, demo_target

CONVERSATIONS = Path(__file__).parents[2] / "config/demo/conversations.jsonl"
RECIPES = {"tiny-llama": tiny_llama.RECIPE, "tiny-kimi": tiny_kimi.RECIPE}
WHOLE_ROWS = [json.loads(line) for line in CONVERSATIONS.read_text(encoding="utf-8").splitlines()]
every_target = pytest.mark.parametrize("target", sorted(TARGETS))


@functools.cache
def tokenizer_of(target: str) -> PreTrainedTokenizerFast:
    return train_tokenizer(RECIPES[target], read_conversations(CONVERSATIONS))


def render(target: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return str(tokenizer_of(target).apply_chat_template(messages, tokenize=False, **options))


# The conversations


def test_ids_are_unique_and_the_file_is_small() -> None:
    ids = [row["id"] for row in WHOLE_ROWS]
    assert len(set(ids)) == len(ids) >= 40
    assert 50_000 < CONVERSATIONS.stat().st_size < 90_000


def test_exactly_one_conversation_is_empty_and_one_repeats_another() -> None:
    assert [row["id"] for row in WHOLE_ROWS if not row["messages"]] == ["never-started"]
    times = Counter(json.dumps([row["messages"], row.get("tools")]) for row in WHOLE_ROWS)
    assert sorted(times.values()) == [1] * (len(WHOLE_ROWS) - 2) + [2]


@every_target
def test_exactly_one_conversation_is_too_long_for_the_demo(target: str) -> None:
    lengths = {
        row["id"]: len(encode_conversations(tokenizer_of(target), [row]))
        for row in WHOLE_ROWS
        if row["messages"]
    }
    assert lengths.pop("kitchen-garden-year") > 1200
    assert max(lengths.values()) < 800


def test_conversations_have_tools_reasoning_and_many_scripts() -> None:
    turns = [turn for row in WHOLE_ROWS for turn in row["messages"]]
    calling = [turn for turn in turns if turn.get("tool_calls")]
    assert [turn["content"] for turn in calling] == [None, None]
    assert sorted(len(turn["tool_calls"]) for turn in calling) == [1, 2]
    assert {type(call["function"]["arguments"]) for turn in calling for call in turn["tool_calls"]} == {
        str,
        dict,
    }
    assert sum("tools" in row for row in WHOLE_ROWS) == 2
    assert sum(any("reasoning_content" in turn for turn in row["messages"]) for row in WHOLE_ROWS) == 3
    text = CONVERSATIONS.read_text(encoding="utf-8")
    assert all(character in text for character in "ß绿عはकд감🎉")


# Tokenizers and chat templates


@every_target
@pytest.mark.parametrize(
    "text",
    ["  two  spaces\n\n\ttab ", "naïve Straße", "一二三", "שלום", "👩🏽‍🚀", "\x00\x7f", "don't 1,000.5 !"],
)
def test_any_text_survives_the_tokenizer(target: str, text: str) -> None:
    assert tokenizer_of(target).decode(tokenizer_of(target).encode(text)) == text


@every_target
def test_special_tokens_are_single_tokens_and_nothing_is_added_to_what_the_template_wrote(
    target: str,
) -> None:
    tokenizer = tokenizer_of(target)
    assert [tokenizer.encode(token) for token in RECIPES[target].special_tokens] == [
        [n] for n in range(len(RECIPES[target].special_tokens))
    ]
    rendered = render(target, WHOLE_ROWS[0]["messages"])
    assert tokenizer.encode(rendered) == tokenizer.encode(rendered, add_special_tokens=False)
    assert tokenizer.eos_token != tokenizer.pad_token


def assert_a_longer_conversation_only_appends(
    target: str, messages: list[dict[str, Any]], tools: Any
) -> None:
    whole = render(target, messages, tools=tools)
    for end in range(1, len(messages)):
        assert whole.startswith(render(target, messages[:end], tools=tools))
        if messages[end]["role"] == "assistant":
            assert whole.startswith(render(target, messages[:end], tools=tools, add_generation_prompt=True))


@every_target
@pytest.mark.parametrize("row", [row for row in WHOLE_ROWS if row["messages"]], ids=lambda row: row["id"])
def test_a_longer_conversation_only_appends(target: str, row: dict[str, Any]) -> None:
    assert_a_longer_conversation_only_appends(target, row["messages"], row.get("tools"))


@every_target
@pytest.mark.skipif(not SHARED_DATA.exists(), reason="needs the real conversations in ../shared/data")
def test_a_longer_real_agent_conversation_only_appends(target: str) -> None:
    rows = json.loads((SHARED_DATA / "tau_bench_airline_100.json").read_text(encoding="utf-8"))
    assert len(rows) == 100
    for row in rows:
        assert_a_longer_conversation_only_appends(target, row["traj"], None)


@every_target
def test_every_turn_of_a_rendered_conversation_is_there(target: str) -> None:
    for row in WHOLE_ROWS:
        if row["messages"] and all(isinstance(turn["content"], str | None) for turn in row["messages"]):
            rendered = render(target, row["messages"], tools=row.get("tools"))
            expected = [
                text
                for turn in row["messages"]
                for text in (turn.get("reasoning_content"), turn["content"])
                if text
            ]
            places = [rendered.find(text) for text in expected]
            assert -1 not in places
            assert all(tool["function"]["description"] in rendered for tool in row.get("tools", []))


@every_target
def test_content_may_be_parts_and_arguments_text_or_an_object_and_unknown_fields_are_ignored(
    target: str,
) -> None:
    def conversation(content: Any, arguments: Any, **unknown: Any) -> list[dict[str, Any]]:
        call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
        return [
            {"role": "user", "content": content, **unknown},
            {"role": "assistant", "content": None, "tool_calls": [call], **unknown},
        ]

    plain = render(target, conversation("ab", '{"where": "Köln"}'))
    assert plain == render(
        target,
        conversation(
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], {"where": "Köln"}, weight=1
        ),
    )
    assert '{"where": "Köln"}' in plain


@every_target
def test_an_assistant_may_speak_first(target: str) -> None:
    user = [{"role": "user", "content": "Hi"}]
    prompt = render(target, user, add_generation_prompt=True).removeprefix(render(target, user))
    assert render(target, [{"role": "assistant", "content": "Hello!"}]).startswith(prompt + "Hello!")


def test_kimi_numbers_the_calls_of_a_conversation() -> None:
    row = next(row for row in WHOLE_ROWS if row["id"] == "trip-planner-parallel-tools")
    rendered = render("tiny-kimi", row["messages"], tools=row["tools"])
    calls = (
        rendered.split("<|tool_calls_section_begin|>")[1]
        .split("<|tool_calls_section_end|>")[0]
        .split("<|tool_call_end|>")
    )
    assert [call.split("<|tool_call_argument_begin|>")[0] for call in calls[:2]] == [
        f"<|tool_call_begin|>functions.find_train:{n}" for n in (0, 1)
    ]
    assert [
        json.loads(call.split("<|tool_call_argument_begin|>")[1])["destination"] for call in calls[:2]
    ] == ["Hamburg", "Berlin"]


# The built targets


@dataclasses.dataclass(frozen=True)
class Built:
    """A built target, its language model in float32, and states of demo text: [T, H] before the first layer
    and after each."""

    directory: Path
    model: LlamaForCausalLM | Kimi_K25ForConditionalGeneration
    states: list[torch.Tensor]
    loss: float

    @property
    def decoder(self) -> torch.nn.Module:
        inner = self.model.model
        return getattr(inner, "language_model", inner)

    @torch.no_grad()
    def greedy(self, states: torch.Tensor) -> torch.Tensor:
        return self.model.lm_head(self.decoder.norm(states)).argmax(-1)


@pytest.fixture(scope="module", params=sorted(TARGETS))
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    directory = demo_target(tmp_path_factory, request.param)
    cls = {"tiny-llama": LlamaForCausalLM, "tiny-kimi": Kimi_K25ForConditionalGeneration}[request.param]
    model = cls.from_pretrained(directory, dtype=torch.float32).eval()
    ids = torch.tensor(
        [encode_conversations(tokenizer_of(request.param), read_conversations(CONVERSATIONS))[4000:5000]]
    )
    states: list[torch.Tensor] = []
    unfinished = Built(directory, model, states, 0.0)
    for layer in unfinished.decoder.layers:
        layer.register_forward_hook(
            lambda _, inputs, output: states.extend([*([] if states else [inputs[0][0]]), output[0]])
        )
    with torch.no_grad():
        return dataclasses.replace(unfinished, loss=model(ids, labels=ids).loss.item())


@pytest.mark.slow
def test_a_target_is_described_like_a_real_one(built: Built) -> None:
    described = describe_target(str(built.directory))
    assert (
        described.architecture
        == {"tiny-llama": "LlamaForCausalLM", "tiny-kimi": "KimiK25ForConditionalGeneration"}[
            built.directory.name
        ]
    )
    assert (
        described.text_architecture
        == {"tiny-llama": "LlamaForCausalLM", "tiny-kimi": "DeepseekV3ForCausalLM"}[built.directory.name]
    )
    assert (described.num_hidden_layers, described.hidden_size, described.max_position_embeddings) == (
        8,
        256,
        16384,
    )
    assert not described.needs_remote_code
    assert resolve_layers(None, "vllm", described.num_hidden_layers) == default_layers(8) == (2, 4, 5, 8)
    assert described.vocab_size >= len(AutoTokenizer.from_pretrained(built.directory))


@pytest.mark.slow
def test_the_saved_tokenizer_is_the_one_the_target_was_trained_with(built: Built) -> None:
    saved, trained = AutoTokenizer.from_pretrained(built.directory), tokenizer_of(built.directory.name)
    rows = read_conversations(CONVERSATIONS)
    assert encode_conversations(saved, rows) == encode_conversations(trained, rows)


@pytest.mark.slow
def test_a_target_has_learned_something(built: Built) -> None:
    assert built.loss < 0.65 * math.log(describe_target(str(built.directory)).vocab_size)
    assert abs(read_json(built.directory / "demo_target.json")["loss_nats"] - built.loss) < 1.0


@pytest.mark.slow
def test_states_of_neighbouring_layers_differ(built: Built) -> None:
    assert len(built.states) == 9
    assert (
        min(
            ((after - before).norm() / before.norm()).item()
            for before, after in zip(built.states, built.states[1:], strict=False)
        )
        > 0.2
    )


@pytest.mark.slow
def test_states_after_the_final_norm_do_not_pass_for_states_before_it(built: Built) -> None:
    right = built.greedy(built.states[-1])
    assert len(right.unique()) > 50
    assert (built.greedy(built.decoder.norm(built.states[-1])) == right).float().mean() < 0.05
    assert (built.greedy(built.states[-2]) == right).float().mean() < 0.9


@pytest.mark.slow
def test_norm_weights_and_router_biases_are_random(built: Built) -> None:
    with safe_open(built.directory / "model.safetensors", framework="pt") as weights:
        norms = [weights.get_tensor(name).float() for name in weights.keys() if "norm" in name]  # noqa: SIM118
        biases = [
            weights.get_tensor(name).float()
            for name in weights.keys()  # noqa: SIM118
            if name.endswith("e_score_correction_bias")
        ]
    assert len(norms) == {"tiny-llama": 2 * 8 + 1, "tiny-kimi": 4 * 8 + 1}[built.directory.name]
    assert all(
        norm.abs().std() > 0.2 and norm.abs().max() < 1.7 and 0 < (norm > 0).float().mean() < 1
        for norm in norms
    )
    assert len(biases) == {"tiny-llama": 0, "tiny-kimi": 7}[built.directory.name]
    assert all(bias.abs().min() > 0 and bias.abs().max() < 0.3 for bias in biases)


def save_kimi(directory: Path) -> DeepseekV3ForCausalLM:
    tokenizer = tokenizer_of("tiny-kimi")
    model = tiny_kimi.make_model(tokenizer)
    tiny_kimi.save(model, tokenizer, directory)
    return model


@pytest.mark.slow
def test_tiny_kimi_has_the_names_and_keys_of_the_real_checkpoint(tmp_path: Path) -> None:
    save_kimi(tmp_path)
    with safe_open(tmp_path / "model.safetensors", framework="pt") as weights:
        names = set(weights.keys())
        assert {weights.get_slice(name).get_dtype() for name in names} == {"BF16"}
    assert all(name.startswith(("language_model.model.", "language_model.lm_head.")) for name in names)
    layer = "language_model.model.layers.1."
    assert {
        layer + "self_attn.kv_b_proj.weight",
        layer + "mlp.experts.7.gate_proj.weight",
        layer + "mlp.shared_experts.up_proj.weight",
    } <= names
    assert {
        layer + "mlp.gate.weight",
        layer + "mlp.gate.e_score_correction_bias",
        "language_model.model.layers.0.mlp.up_proj.weight",
    } <= names
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["model_type"], config["text_config"]["model_type"]) == ("kimi_k25", "kimi_k2")
    assert (config["text_config"]["topk_method"], config["text_config"]["scoring_func"]) == (
        "noaux_tc",
        "sigmoid",
    )
    assert config["text_config"]["num_attention_heads"] % 8 == 0


@pytest.mark.slow
def test_tiny_kimi_as_transformers_loads_it_is_the_model_that_was_saved(tmp_path: Path) -> None:
    saved = save_kimi(tmp_path)
    loaded = Kimi_K25ForConditionalGeneration.from_pretrained(tmp_path, dtype=torch.bfloat16)
    ours, theirs = saved.model.state_dict(), loaded.model.language_model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name].to(torch.bfloat16), theirs[name].to(torch.bfloat16)) for name in ours)
    assert torch.equal(saved.lm_head.weight, loaded.lm_head.weight)


# Building


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any training."""
    monkeypatch.setattr(training, "TABLE_STEPS", 3)
    monkeypatch.setattr(tiny_llama, "RECIPE", dataclasses.replace(tiny_llama.RECIPE, steps=2))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_target_and_another_seed_another_one(
    quick: None, tmp_path: Path
) -> None:
    torch.manual_seed(99)
    state = torch.get_rng_state()
    for name, seed in (("first", 3), ("again", 3), ("other", 4)):
        build_demo_target("tiny-llama", CONVERSATIONS, tmp_path / name, seed=seed)
    fingerprints = [describe_target(str(tmp_path / name)).fingerprint for name in ("first", "again", "other")]
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.slow
def test_an_earlier_build_is_replaced_and_nothing_is_left_beside_it(quick: None, tmp_path: Path) -> None:
    for seed in (1, 2):
        build_demo_target("tiny-llama", CONVERSATIONS, tmp_path / "target", seed=seed)
    assert read_json(tmp_path / "target/demo_target.json")["seed"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    short = tmp_path / "short.jsonl"
    short.write_text(
        '{"id": "a", "messages": [{"role": "user", "content": "Hi"}]}\n{"id": "b", "messages": []}\n'
    )
    with pytest.raises(InputError, match="needs more than 64"):
        build_demo_target("tiny-llama", short, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["short.jsonl"]


def test_a_directory_that_is_no_demo_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="is not a demo target"):
        build_demo_target("tiny-llama", CONVERSATIONS, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("line", ["{", "[1]", '{"id": "no messages"}', "null"])
def test_a_line_that_is_no_conversation_is_named(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"messages": []}\n\n' + line + "\n")
    with pytest.raises(InputError, match="line 3"):
        read_conversations(file)
