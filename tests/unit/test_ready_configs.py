"""The example and the ready configurations are valid, plan what their comments say, and hold no value of the
demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_data.compatibility.run.arithmetic import (
    Workload,
    check_device_memory,
    check_length,
    check_tensor_parallel,
    positions_of,
)
from eagle3_data.compatibility.run.demo_values import check_demo_values
from eagle3_data.compatibility.run.static import Model, Question, check_tree
from eagle3_data.compatibility.source.source_tree import SourceTree, installed_tree
from eagle3_data.config import Config, load_config
from eagle3_data.config.sections import TrainingSet
from eagle3_data.target import text_config
from eagle3_data.target.layers import resolve_layers
from model_configs import GPT_OSS_20B, GPT_OSS_120B, KIMI_K2_5, LLAMA_3_1_8B, QWEN3_8B

ROOT = Path(__file__).parents[2]
READY = {
    # file: (config.json, bytes of the weights, layers, bytes of states a token)
    "llama-3.1-8b": (LLAMA_3_1_8B, 16_060_000_000, (2, 16, 29, 32), 32_768),
    "qwen3-8b": (QWEN3_8B, 16_380_000_000, (2, 18, 33, 36), 32_768),
    "gpt-oss-20b": (GPT_OSS_20B, 13_760_000_000, (2, 12, 21, 24), 23_040),
    "gpt-oss-120b": (GPT_OSS_120B, 65_250_000_000, (2, 18, 33, 36), 23_040),
    "kimi-k2.5": (KIMI_K2_5, 595_000_000_000, (2, 30, 58, 61), 57_344),
}


def read(name: str) -> Config:
    return load_config(yaml.safe_load((ROOT / f"config/{name}.yaml").read_text()))


@pytest.fixture(scope="module")
def vllm() -> SourceTree:
    tree = installed_tree("vllm")
    assert tree is not None
    return tree


@pytest.mark.parametrize("name", READY)
def test_a_ready_configuration_fits_the_published_model(name: str, vllm: SourceTree) -> None:
    model, weights_bytes, layers, token_bytes = READY[name]
    config = read(name)
    extraction, text = config.extraction, text_config(model)
    assert resolve_layers(extraction.layers, extraction.layer_convention, text["num_hidden_layers"]) == layers
    arguments = dict(extraction.engine_arguments)
    question = Question(model=Model.of(model), layers=layers, engine_arguments=arguments)
    assert [one for one in check_tree(vllm, question) if one.level == "fail"] == []
    memory = config.compatibility.device_memory_gib
    assert memory
    fitting: list[Any] = [
        *check_device_memory(weights_bytes, extraction.tensor_parallel, int(memory * 2**30)),
        *check_tensor_parallel(text, extraction.tensor_parallel),
        *check_length(config.tokenization.max_length, positions_of(text)),
        *check_demo_values(text["vocab_size"], config.tokenization, config.training_set),
    ]
    assert [one for one in fitting if one.level in ("fail", "warn")] == []
    assert Workload(0, 1, 1, layers, text["hidden_size"], "bfloat16").bytes_per_token == token_bytes + 8
    assert f"{token_bytes:,} bytes" in (ROOT / f"config/{name}.yaml").read_text()


def test_the_example_takes_the_defaults_for_what_it_does_not_say() -> None:
    config = read("example")
    assert config.training_set == TrainingSet()
    assert config.generation.responses == "target"
    assert check_demo_values(128_256, config.tokenization, config.training_set) == []
