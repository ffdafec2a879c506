"""The canary's model and its checks. Faults are patched into right states; tests/integration has those of
real engines."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import run_canary as run_canary_script
from architectures import PUBLISHED
from canary_faults import (
    dropped_chunk,
    layer_off_by_one,
    post_norm,
    reversed_tokens,
    rewrite,
    spoil,
    swap_samples,
    swap_states,
    zeroed_tail,
)
from eagle3_data.canary import checks
from eagle3_data.canary import model as canary_model
from eagle3_data.canary import run as canary_run
from eagle3_data.canary.checks import Answer, check
from eagle3_data.canary.layers import cut_layers, layer_kinds
from eagle3_data.canary.model import MAX_BYTES, build_canary, design_canary, shrink, size_bytes
from eagle3_data.canary.quantization import quantization_of
from eagle3_data.canary.run import foresee_canary, missing_layers, prompts, run_canary
from eagle3_data.engines.base import EngineSettings, Fatal, Request, error_path
from eagle3_data.engines.storage import stored_tensors
from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.errors import CompatibilityError, EngineError, InputError
from eagle3_data.findings import Finding
from eagle3_data.records.failures import describe_exception, describe_situation
from eagle3_data.target import text_config
from eagle3_data.validation.head import read_head
from model_configs import (
    DEEPSEEK_V3,
    FULL_SIZE,
    KIMI_K2_5,
    LLAMA_3_1_70B,
    QWEN3_235B,
    write_target,
)
from tiny_models import tiny_model

SMALL = {
    **LLAMA_3_1_70B,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "eos_token_id": 511,
    "bos_token_id": 510,
}
CUT = {
    "num_hidden_layers", "vocab_size", "intermediate_size", "moe_intermediate_size", "n_routed_experts",
    "num_experts", "first_k_dense_replace", "quantization_config", "bos_token_id", "eos_token_id",
    "pad_token_id",
}  # fmt: skip


KINDS = {
    "Bamba-9B": 2, "DeepSeek-V3": 2, "Gemma-2-9B": 2, "Gemma-3-4B": 2, "Gemma-3-4B-text": 2, "Gemma-4-E2B": 6,
    "gpt-oss-20b": 2, "Kimi-K2.5": 2, "Kimi-Linear-48B": 3, "LFM2-1.2B": 2, "Llama-4-Scout-text": 2,
    "Nemotron-H-8B": 3, "Olmo-3-7B": 2, "Qwen3-Next-80B": 2, "Qwen3.5-4B": 2, "SmolLM3-3B": 2,
}  # fmt: skip
"""How many kinds of layers a model has, where it is more than one."""


# --- the model


@pytest.mark.parametrize("tensor_parallel", [1, 8])
@pytest.mark.parametrize("name", FULL_SIZE)
def test_a_full_size_architecture_shrinks_below_the_bound(name, tensor_parallel, tmp_path):
    blueprint = design_canary(write_target(tmp_path / "target", FULL_SIZE[name]), tensor_parallel, False)
    assert len(blueprint.kept) == (3 if name == "Llama-3.1-405B" else 4)
    assert 0.5 * 2**30 < size_bytes(blueprint.model) <= MAX_BYTES


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_layer_of_every_kind_of_a_published_model_is_kept(name, tmp_path):
    blueprint = design_canary(write_target(tmp_path / "target", PUBLISHED[name]), 1, False)
    assert blueprint.missing == 0
    assert 4 <= len(blueprint.kept) <= 8
    assert size_bytes(blueprint.model) < 2.2 * 2**30
    kinds = {str(kind) for kind in layer_kinds(blueprint.model)}
    assert len(kinds) >= KINDS.get(name, 1), f"{len(kinds)} kinds of layers"


def test_lists_of_layers_are_cut_to_the_layers_that_are_kept():
    text = {
        "num_hidden_layers": 8,
        "hybrid_override_pattern": "M-M-M*M-",
        "layer_types": list("abcdefgh"),
        "attn_layer_indices": [2, 5],
        "full_attn_idxs": [5, 6],
        "linear_attn_config": {"kda_layers": [1, 2, 4, 5, 7, 8], "full_attn_layers": [3, 6], "head_dim": 64},
        "per_layer_config": {"5": {"head_dim": 512}, "7": {"head_dim": 512}},
        "first_k_dense_replace": 2,
        "num_kv_shared_layers": 3,
        "mlp_only_layers": [],
    }
    assert cut_layers(text, (0, 1, 2, 5)) == {
        "num_hidden_layers": 4,
        "hybrid_override_pattern": "M-M*"[:3] + text["hybrid_override_pattern"][5],
        "layer_types": ["a", "b", "c", "f"],
        "attn_layer_indices": [2, 3],
        "full_attn_idxs": [3],
        "linear_attn_config": {"kda_layers": [1, 2], "full_attn_layers": [3, 4], "head_dim": 64},
        "per_layer_config": {"3": {"head_dim": 512}},
        "first_k_dense_replace": 2,
        "num_kv_shared_layers": 1,
        "mlp_only_layers": [],
    }


def test_a_flat_wrapper_loses_its_tower():
    vision = shrink(PUBLISHED["Qwen2.5-VL-7B-flat"], 1)["vision_config"]
    assert (vision["depth"], vision["fullatt_block_indexes"]) == (2, [1, 1, 1, 1])


def test_kinds_that_cannot_be_kept_are_not_covered_and_said(tmp_path, monkeypatch):
    target = write_target(tmp_path / "target", PUBLISHED["Gemma-3-4B-text"])
    monkeypatch.setattr(canary_model, "cut_layers", lambda text, kept: {**text, "num_hidden_layers": 2})
    blueprint = design_canary(target, 1, False)
    (finding,) = missing_layers(blueprint)
    assert (finding.id, finding.level) == ("canary-coverage", "unknown")
    assert finding.title.startswith("5 of the target's layers are of a kind")


@pytest.mark.parametrize("name", FULL_SIZE)
def test_what_decides_about_kernels_and_routes_is_kept(name):
    before, after = text_config(FULL_SIZE[name]), text_config(shrink(FULL_SIZE[name], 8))
    assert {key for key in before if before[key] != after.get(key)} <= CUT
    assert after["num_hidden_layers"] == 4
    assert all(size % (8 * 128) == 0 for key, size in after.items() if "intermediate_size" in key)


def test_experts_are_cut_in_whole_groups_and_the_first_layers_keep_both_kinds():
    assert shrink(DEEPSEEK_V3, 1)["n_routed_experts"] == 16 == 2 * DEEPSEEK_V3["n_group"]
    assert shrink({**DEEPSEEK_V3, "n_group": 12}, 1)["n_routed_experts"] == 24
    assert shrink({**DEEPSEEK_V3, "num_experts_per_tok": 10}, 1)["n_routed_experts"] == 24
    assert (
        shrink({**DEEPSEEK_V3, "n_routed_experts": 8, "num_experts_per_tok": 2}, 1)["n_routed_experts"] == 8
    )
    assert shrink(QWEN3_235B, 1)["num_experts"] == 16
    assert shrink(DEEPSEEK_V3, 1, (0, 3, 4, 5))["first_k_dense_replace"] == 1


def test_special_tokens_stay_inside_the_cut_vocabulary_in_the_wrapper_too():
    small = shrink(KIMI_K2_5, 1)
    ids = [
        value
        for part in (small, small["text_config"])
        for name, value in part.items()
        if name.endswith("_token_id")
    ]
    assert len(ids) == 7 and set(ids) == {small["text_config"]["vocab_size"] - 1}
    assert shrink(LLAMA_3_1_70B, 1)["eos_token_id"] == [4095, 4095, 4095]
    assert shrink({**DEEPSEEK_V3, "pad_token_id": None}, 1)["pad_token_id"] is None
    assert max(max(ids) for ids in prompts(4096)) < 4095


def test_the_wrapper_stays_and_quantization_goes():
    small = shrink({**KIMI_K2_5, "quantization_config": {"quant_method": "fp8"}}, 1)
    assert (
        small["architectures"] == KIMI_K2_5["architectures"]
        and small["vision_config"] == KIMI_K2_5["vision_config"]
    )
    assert (
        quantization_of(KIMI_K2_5)
        and quantization_of(DEEPSEEK_V3)
        and not quantization_of(small)
        and not quantization_of(LLAMA_3_1_70B)
    )


def test_lists_with_one_entry_a_layer_are_cut_with_the_layers():
    kinds = ["linear_attention", "full_attention"] * 47
    small = shrink({**QWEN3_235B, "layer_types": kinds, "mlp_only_layers": [0]}, 1)
    assert (small["layer_types"], small["mlp_only_layers"]) == (kinds[:4], [0])


def test_an_architecture_that_transformers_does_not_know_is_a_finding_before_any_engine_starts(tmp_path):
    target = write_target(
        tmp_path / "target", {**SMALL, "architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}
    )
    settings = EngineSettings(
        "no_such_module:Engine", str(target), (2,), "bfloat16", 1, 300, False, str(tmp_path)
    )
    (finding,) = run_canary(settings, tmp_path / "work", tmp_path / "engine.log")
    assert (finding.id, finding.level) == ("canary-not-built", "unknown")
    assert "nosuch" in finding.title and "transformers" in finding.remedy
    assert not (tmp_path / "work").exists()


def test_what_the_canary_cannot_tell_is_foreseen(tmp_path):
    model = tiny_model("LlamaForCausalLM")
    model.save_pretrained(tmp_path)
    assert foresee_canary(tmp_path, 1, False) == []
    config = json.loads((tmp_path / "config.json").read_text())
    changed = {**config, "quantization_config": {"quant_method": "awq"}}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    assert [finding.id for finding in foresee_canary(tmp_path, 1, False)] == ["canary-quantization"]
    changed = {**config, "architectures": ["NoSuchForCausalLM"], "model_type": "nosuch"}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    findings = foresee_canary(tmp_path, 1, False)
    assert {finding.id for finding in findings} == {"canary-not-built", "greedy-token-unknown"}
    assert {finding.level for finding in findings} == {"unknown"}


# --- the script


@pytest.mark.parametrize(
    ("allowed", "code"), [([], 1), (["canary-layer"], 1), (["canary-layer", "canary-parity"], 0)]
)
def test_an_accepted_finding_lets_the_pass_go_on_and_stays_in_the_verdict(
    tmp_path, monkeypatch, capsys, allowed, code
):
    found = [
        Finding(id="canary-layer", level="fail", title="one off"),
        Finding(id="canary-parity", level="fail", title="differs"),
    ]
    monkeypatch.setattr(run_canary_script, "run_canary", lambda *arguments: found)
    settings = json.dumps(asdict(EngineSettings("e:E", "m", (2,), "bfloat16", 1, 300, False, str(tmp_path))))
    paths = [
        "--work",
        str(tmp_path / "work"),
        "--log",
        str(tmp_path / "log"),
        "--output",
        str(tmp_path / "verdict.json"),
    ]
    monkeypatch.setattr("sys.argv", ["run_canary.py", "--settings", settings, *paths, "--allow", *allowed])
    if code:
        with pytest.raises(CompatibilityError) as caught:
            run_canary_script.main()
        assert ("canary-layer" in str(caught.value)) == (not allowed) and "canary-parity" in str(caught.value)
    else:
        run_canary_script.main()
    record = json.loads((tmp_path / ("verdict.failed.json" if code else "verdict.json")).read_text())
    assert [finding["id"] for finding in record["findings"] if finding["accepted"]] == allowed
    assert ("fail (accepted): canary-layer" in capsys.readouterr().err) == bool(allowed)


# --- the checks


@pytest.fixture(scope="module", params=["float32", "bfloat16", "fp8"])
def right(request, tmp_path_factory):
    """Right states of a small model, written as an engine does: (settings, answers)."""
    directory = tmp_path_factory.mktemp("canary")
    (directory / "target").mkdir()
    (directory / "target/config.json").write_text(json.dumps(SMALL))
    build_canary(directory / "target", directory / "model", 1, False)
    (directory / "states").mkdir()
    storage = "fp8" if request.param == "fp8" else "same"
    dtype = "float32" if request.param == "float32" else "bfloat16"
    settings = EngineSettings(
        "", str(directory / "model"), (1, 2, 3, 4), dtype, 1, 300, False, str(directory / "states"),
        storage_dtype=storage,
    )  # fmt: skip
    reference = ReferenceModel(settings.model_path, torch.float32)
    answers = []
    for alone in (False, True):
        for ids in prompts(SMALL["vocab_size"]):
            path = directory / f"states/{len(answers):02d}.safetensors"
            states, greedy = reference.states(ids, settings.layers)
            save_file(
                {
                    **stored_tensors(states.to(getattr(torch, dtype)), storage),
                    "token_ids": torch.tensor(ids),
                },
                path,
            )
            answers.append(Answer(Request(path.stem, ids, str(path)), greedy, alone))
    return settings, answers


@pytest.fixture
def case(right, tmp_path):
    """A copy of the states that may be spoiled."""
    settings, answers = right
    for answer in answers:
        shutil.copy(answer.request.states_path, tmp_path)
    moved = [
        replace(
            one, request=replace(one.request, states_path=str(tmp_path / Path(one.request.states_path).name))
        )
        for one in answers
    ]
    return settings, moved


def found(case):
    settings, answers = case
    return check(settings, answers, SMALL["hidden_size"])


def ids(findings):
    return {finding.id for finding in findings}


def longest(answers):
    return max(answers, key=lambda answer: len(answer.request.token_ids))


def test_right_states_have_no_finding(case):
    assert found(case) == []


def test_a_layer_off_by_one_names_both_layers(case):
    spoil(case[1], layer_off_by_one)
    findings = found(case)
    assert ids(findings) == {"canary-layer"}
    assert any("layer 1: the states are those after layer 2" in finding.title for finding in findings)


def test_embeddings_instead_of_a_layer_are_named(case):
    settings, answers = case
    reference = ReferenceModel(settings.model_path, torch.float32)
    for answer in answers:
        rewrite(
            Path(answer.request.states_path),
            lambda states, answer=answer: torch.cat(
                [reference.states(answer.request.token_ids, [0])[0], states[:, 1:]], 1
            ),
        )
    (finding,) = found(case)
    assert finding.id == "canary-layer" and "layer 1: the states are those after layer 0" in finding.title


def test_swapped_samples(case):
    swap_samples(case[1])
    assert "canary-wrong-token-ids" in ids(found(case))


def test_states_swapped_under_right_ids(case):
    swap_states(case[1])
    findings = found(case)
    assert ids(findings) == {
        "canary-parity",
        "canary-chunk",
    }  # the shorter sample is another all through, the longer one in part


def test_a_zeroed_tail(case):
    spoil(case[1], zeroed_tail, shortest=10)
    assert ids(found(case)) == {"canary-all-zero"}


def test_states_that_are_not_finite(case):
    spoil(case[1], lambda states: states.index_fill(0, torch.tensor([0]), float("nan")))
    assert ids(found(case)) == {"canary-not-finite"}


def test_states_after_the_final_norm(case):
    spoil(case[1], post_norm(read_head(Path(case[0].model_path))))
    findings = found(case)
    assert ids(findings) == {"canary-post-norm"} and "layer 4" in findings[0].title


@pytest.mark.parametrize("company_only", [False, True])
def test_a_dropped_chunk_names_its_tokens(case, company_only):
    spoil(case[1], dropped_chunk, shortest=128, company_only=company_only)
    findings = found(case)
    assert ids(findings) == {"canary-chunk"}
    assert all("sample of 150 tokens" in finding.title for finding in findings)
    assert all("only tokens 64 to 127 " in finding.title for finding in findings)


def test_a_sample_that_is_only_right_alone(case):
    spoil(case[1], reversed_tokens, shortest=10, company_only=True)
    assert ids(found(case)) == {"canary-batch"}


def test_states_of_nothing_known(case):
    spoil(case[1], reversed_tokens, shortest=10)
    assert ids(found(case)) == {"canary-parity"}


def test_a_small_error_everywhere_shows_in_the_median(case):
    error = 0.2 if case[0].dtype == "bfloat16" else 0.005
    spoil(case[1], lambda states: states * (1 + error))
    findings = found(case)
    assert ids(findings) == {"canary-parity"} and "median relative error" in findings[0].title


def test_another_greedy_token(case):
    settings, answers = case
    wrong = [replace(one, greedy_token=(one.greedy_token + 1) % SMALL["vocab_size"]) for one in answers]
    assert ids(check(settings, wrong, SMALL["hidden_size"])) == {"canary-greedy-token"}


def test_a_missing_layer_and_another_dtype(case):
    spoil(case[1], lambda states: states[:, 1:])
    assert ids(found(case)) == {"canary-wrong-shape"}


def test_a_states_file_that_is_missing_torn_or_failed_to_be_written(case):
    _, answers = case
    paths = [Path(answer.request.states_path) for answer in answers[:3]]
    paths[0].unlink()
    paths[1].write_bytes(paths[1].read_bytes()[:-10])
    failure = describe_exception(OSError("No space left on device"))
    error_path(paths[2]).write_text(json.dumps(failure.to_json()))
    titles = sorted(finding.title for finding in found(case) if finding.id == "canary-write")
    assert len(titles) == 3
    assert any("FileNotFoundError" in title for title in titles) and any(
        "truncated" in title for title in titles
    )
    assert any("OSError: No space left on device" in title for title in titles)


@pytest.mark.parametrize(
    ("wrong", "length", "lost"),
    [
        (range(64, 128), 150, True),
        (range(64), 150, True),
        (range(128, 150), 150, True),
        (range(64, 150), 150, True),  # the second step's cache is lost, and all that follows
        (range(100, 150), 150, False),  # a window
        (range(16, 32), 150, False),
        (range(40, 100), 150, False),
        (range(0, 150, 2), 150, False),
        (range(150), 150, False),
        (range(16, 32), 64, False),
    ],
)
def test_only_whole_steps_are_called_a_lost_chunk(wrong, length, lost):
    tokens = torch.zeros(length, dtype=torch.bool)
    tokens[list(wrong)] = True
    assert checks._are_lost_steps(tokens) == lost


def test_a_window_that_the_engine_forgets_is_no_lost_chunk(case):
    spoil(case[1], lambda states: torch.cat([states[:100], states[100:].flip(0)]), shortest=128)
    findings = found(case)
    assert ids(findings) == {"canary-parity"}
    assert all("only tokens 1" in finding.title for finding in findings)


def test_what_rounding_does_to_transformers_too_is_unknown_but_a_wrong_layer_is_not(case, monkeypatch):
    monkeypatch.setattr(checks._Judge, "_own_errors_of", lambda judge, ids: torch.full((len(ids), 5), 0.3))
    spoil(case[1], reversed_tokens, shortest=10)
    findings = found(case)
    level = "fail" if case[0].dtype == "float32" else "unknown"  # float32 itself is not rounded
    assert {(finding.id, finding.level) for finding in findings} == {("canary-parity", level)}
    assert all(("says nothing about the engine" in one.title) == (level == "unknown") for one in findings)
    spoil(case[1], reversed_tokens, shortest=10)
    spoil(case[1], layer_off_by_one)
    assert {(finding.id, finding.level) for finding in found(case)} == {("canary-layer", "fail")}


def test_rounding_of_a_plain_model_excuses_nothing(case):
    spoil(case[1], reversed_tokens, shortest=10)
    assert {(finding.id, finding.level) for finding in found(case)} == {("canary-parity", "fail")}


def refuse(message):
    def raising(*_, **__):
        raise message

    return raising


def test_without_a_head_only_the_greedy_token_is_unknown(case, monkeypatch):
    monkeypatch.setattr(checks, "read_head", refuse(InputError("no norm")))
    (finding,) = found(case)
    assert (finding.id, finding.level) == ("canary-greedy-token", "unknown") and "no norm" in finding.title
    spoil(case[1], layer_off_by_one)
    assert "canary-layer" in ids(found(case))


def test_without_a_reference_structure_is_still_judged(case, monkeypatch):
    monkeypatch.setattr(checks, "ReferenceModel", refuse(RuntimeError("no such kernel")))
    (finding,) = found(case)
    assert (finding.id, finding.level) == ("canary-reference", "unknown")
    assert "RuntimeError: no such kernel" in finding.title
    spoil(case[1], zeroed_tail, shortest=10)
    assert ids(found(case)) == {"canary-all-zero", "canary-reference"}


@pytest.mark.parametrize(
    ("cause", "machine"),
    [
        ("TypeError: 'function' object is not subscriptable (at vllm/v1/worker/mamba_utils.py:1226)", True),
        ("AttributeError: '_OpNamespace' '_C' object has no attribute 'topk_sigmoid'", True),
        ("ValueError: head size 192 is not supported on CPU", True),
        (
            "AssertionError without a message, raised by `assert self.scoring_func == 'softmax'` (at"
            " /venv/vllm/model_executor/layers/fused_moe/router/cpu_router.py:239 in _compute_routing)",
            True,
        ),
        ("AssertionError: no rotary_dim (at /venv/vllm/model_executor/models/minimax_m2.py:12)", False),
        ("KeyError: 'layers.0.mlp.gate'", False),
    ],
)
def test_a_kernel_that_this_machine_lacks_is_said_as_the_machines_fault(
    cause, machine, monkeypatch, tmp_path
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    class Process:
        log = tmp_path / "engine.log"

        def explain(self, failure):
            return replace(failure, causes=[cause])

    word = Fatal(describe_situation(EngineError, "the engine died"))
    finding = canary_run._engine_failed("canary-extraction", "no states", word, Process(), 9)
    assert finding.level == "fail" and cause in finding.title
    assert finding.title.startswith("this machine lacks a kernel") == machine
    assert ("GPUs" in finding.remedy) == machine
