"""vLLM's own extraction: method, connector, cache, and the client that picks up the files."""

import pytest
from compatibility_trees import CONNECTOR_PATH, MODELS, VLLM, client, symbols

from eagle3_data.compatibility.vllm.contract import read_contract
from eagle3_data.compatibility.vllm.models import ModelRegistry
from eagle3_data.compatibility.vllm.wire_contract import (
    EnginePlan,
    check_contract,
    check_engine_arguments,
)

SLOTS = "slots = get_forward_context().slot_mapping[layer_name]\n        save_file(kv_layer[slots])"


def connector(old, new):
    assert old in VLLM[CONNECTOR_PATH]
    return {CONNECTOR_PATH: VLLM[CONNECTOR_PATH].replace(old, new)}


def found(table, plan=EnginePlan(), clients=()):  # noqa: B008 - frozen
    return [(finding.id, finding.level) for finding in check_contract(table, plan, None, clients)]


def test_a_vllm_that_reads_the_cache_when_a_request_ends_is_safe(tmp_path):
    table = symbols(tmp_path)
    assert found(table, EnginePlan(tensor_parallel=8)) == []
    assert read_contract(table).configuration_keys == {"shared_storage_path", "allow_custom_save_path"}


def test_a_vllm_without_the_method_or_the_connector_fails_with_that_alone(tmp_path):
    without = {
        "vllm/config/speculative.py": (
            VLLM["vllm/config/speculative.py"].replace(', "extract_hidden_states"', "")
        )
    }
    assert found(symbols(tmp_path / "a", without)) == [("no-extraction-method", "fail")]
    assert found(symbols(tmp_path / "b", {CONNECTOR_PATH: None})) == [("no-connector", "fail")]


def test_saving_within_a_step_breaks_chunks_and_with_the_steps_slots_prefixes_too(tmp_path):
    in_step = symbols(tmp_path / "a", connector("pass\n", "save_file(kv_layer)\n"))
    assert found(in_step) == [("unsafe-chunked-prefill", "fail")]
    of_step = symbols(tmp_path / "b", connector("pass\n", SLOTS + "\n"))
    assert found(of_step) == [("unsafe-chunked-prefill", "fail"), ("unsafe-prefix-caching", "fail")]


@pytest.mark.parametrize(
    ("arguments", "longest", "expected"),
    [
        ({}, None, ["unsafe-chunked-prefill", "unsafe-prefix-caching"]),
        ({"enable_prefix_caching": False}, None, ["unsafe-chunked-prefill"]),
        ({"enable_chunked_prefill": False, "enable_prefix_caching": False}, None, []),
        ({"max_num_batched_tokens": 4096, "enable_prefix_caching": False}, 4096, []),
        ({"max_num_batched_tokens": 4096, "enable_prefix_caching": False}, 4097, ["unsafe-chunked-prefill"]),
    ],
)
def test_engine_arguments_that_avoid_the_fault_are_respected(tmp_path, arguments, longest, expected):
    table = symbols(tmp_path, connector("pass\n", SLOTS + "\n"))
    assert [name for name, _ in found(table, EnginePlan.of(1, arguments, longest))] == expected


def test_ranks_that_all_write_fail_only_with_tensor_parallelism(tmp_path):
    table = symbols(tmp_path, connector("from vllm.parallel import get_tensor_model_parallel_rank\n", ""))
    assert found(table, EnginePlan(tensor_parallel=1)) == []
    assert found(table, EnginePlan(tensor_parallel=2)) == [("every-rank-writes", "fail")]


def test_an_allowlist_of_model_types_is_respected(tmp_path):
    listed = (
        VLLM["vllm/config/speculative.py"]
        + "\n    def check(self):\n        aux_hidden_states_supported = ['llama', 'qwen']\n"
    )
    table = symbols(tmp_path, {"vllm/config/speculative.py": listed})
    assert found(table, EnginePlan(model_type="qwen3_moe")) == []
    assert found(table, EnginePlan(model_type="deepseek_v3")) == [("model-type-refused", "fail")]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        (
            {
                CONNECTOR_PATH: (
                    VLLM[CONNECTOR_PATH].replace("from vllm.interface import HiddenStateCacheSpec\n", "")
                )
            },
            ["hybrid-states-wrong"],
        ),
        (
            {
                CONNECTOR_PATH: (
                    VLLM[CONNECTOR_PATH]
                    .replace("from vllm.interface import HiddenStateCacheSpec\n", "")
                    .replace(
                        "        pass\n",
                        "        slots = get_forward_context().slot_mapping[layer_name]\n",
                        1,
                    )
                )
            },
            [
                "unsafe-chunked-prefill",
                "unsafe-prefix-caching",
            ],  # wrong for other reasons, but these slots are the states' own
        ),
        ({"vllm/v1/core/kv_cache_utils.py": ""}, ["hybrid-page-too-small"]),
    ],
)
def test_hybrid_models_need_their_cache_group_found_and_fitting(tmp_path, changes, expected):
    hybrid = (
        VLLM[f"{MODELS}/llama.py"]
        .replace("import SupportsEagle3", "import IsHybrid, SupportsEagle3")
        .replace("(Module, SupportsEagle3)", "(Module, SupportsEagle3, IsHybrid)")
    )
    table = symbols(tmp_path, {f"{MODELS}/llama.py": hybrid, **changes})
    architecture = ModelRegistry(table).describe("LlamaForCausalLM")
    assert [finding.id for finding in check_contract(table, EnginePlan(), architecture)] == expected


@pytest.mark.parametrize(
    ("flag", "expected"),
    [("", ["pipeline-loses-states"]), ("    supports_aux_hidden_states_over_pp = True\n", [])],
)
def test_pipeline_stages_must_hand_captured_states_on(tmp_path, flag, expected):
    model = VLLM[f"{MODELS}/llama.py"].replace(
        "class LlamaModel(Module):\n", f"class LlamaModel(Module):\n{flag}"
    )
    table = symbols(tmp_path, {f"{MODELS}/llama.py": model})
    architecture = ModelRegistry(table).describe("LlamaForCausalLM")
    assert [
        finding.id for finding in check_contract(table, EnginePlan(pipeline_parallel=2), architecture)
    ] == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("states = load_file(response['hidden_states_path'])  # vllm", [("no-lock-wait", "fail")]),
        ("path = response['hidden_states_path']\nwait_for_lock(path + '.lock')", []),
        ("x = {'kv_transfer_params': {'hidden_states_path': p}}\nload_hidden_states(p)", []),
        ("x = {'kv_transfer_params': {'hidden_states_folder': p}}", [("ignored-key", "fail")]),
        (
            (
                "x = {'kv_connector': 'C', 'kv_connector_extra_config': {'shared_storage_path': p,"
                " 'allow_custom_save_path': True}}"
            ),
            [],
        ),
        (
            "x = {'kv_connector': 'C', 'kv_connector_extra_config': {'use_lock': False}}",
            [("ignored-key", "fail")],
        ),
        (
            (
                "x = {'kv_connector': 'C', 'kv_connector_extra_config': {'mine':"
                " 1}}\nself.c.get_from_extra_config('mine', 0)"
            ),
            [],
        ),
        (
            "x = {'kv_connector': 'C', 'kv_conector_module_path': 'm'}",
            [("unknown-configuration-key", "fail")],
        ),
        (
            "x = {'method': 'extract_hidden_states', 'num_speculative_tokens': 1, 'layers': [2]}",
            [("unknown-configuration-key", "fail")],
        ),
        ("x = {'method': 'GET', 'layers': [2]}", []),
    ],
)
def test_what_a_client_says_must_be_heard_and_what_it_reads_be_there(tmp_path, source, expected):
    assert found(symbols(tmp_path), clients=(client(source),)) == expected


def test_an_unknown_engine_argument_is_reported_with_the_nearest_one(tmp_path):
    files = {
        "vllm/entrypoints/llm.py": "class LLM:\n    def __init__(self, model, *, seed=0, **kwargs): ...\n",
        "vllm/engine/arg_utils.py": "@dataclass\nclass EngineArgs:\n    max_num_batched_tokens: int = 1\n",
    }
    table = symbols(tmp_path, files)
    assert check_engine_arguments(table, {"seed": 1, "max_num_batched_tokens": 64}) == []
    (finding,) = check_engine_arguments(table, {"max_num_batched_token": 64})
    assert (finding.id, finding.remedy) == ("unknown-engine-argument", "did you mean max_num_batched_tokens?")
