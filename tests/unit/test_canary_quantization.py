"""The canary is quantized as its target: which weights, how, and what they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors import unpack_from_int32
from safetensors.torch import load_file, save_file

from eagle3_data.canary.quantization import PackedIntegers, StoredNames, quantize_canary, scheme_of
from model_configs import DEEPSEEK_V3, KIMI_K2_5, LLAMA_3_1_70B

INT4 = KIMI_K2_5["text_config"]["quantization_config"]


def int4_with(**weights: Any) -> dict[str, Any]:
    group = INT4["config_groups"]["group_0"]
    return {**INT4, "config_groups": {"group_0": {**group, "weights": {**group["weights"], **weights}}}}


def test_kimis_int4_is_covered():
    assert scheme_of(INT4) == PackedIntegers(4, 32)
    assert scheme_of(int4_with(num_bits=8, strategy="channel", group_size=None)) == PackedIntegers(8, None)


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "awq", "bits": 4},
        DEEPSEEK_V3["quantization_config"],
        {**INT4, "format": "int-quantized"},
        {**INT4, "config_groups": {**INT4["config_groups"], "group_1": {}}},
        {
            **INT4,
            "config_groups": {
                "group_0": {**INT4["config_groups"]["group_0"], "input_activations": {"num_bits": 8}}
            },
        },
        {**INT4, "kv_cache_scheme": {"num_bits": 8, "type": "float"}},
        {**INT4, "transform_config": {"config_groups": {"rotation": {}}}},
        int4_with(symmetric=False),
        int4_with(actorder="group"),
        int4_with(num_bits=3),
    ],
)
def test_another_way_is_not(quantization):
    assert scheme_of(quantization) is None


@pytest.mark.parametrize(("bits", "group_size", "error"), [(4, 32, 0.15), (8, 32, 0.01), (4, None, 0.2)])
def test_packed_integers_stand_for_their_values(bits, group_size, error):
    weight = torch.randn(48, 128).to(torch.bfloat16)
    stored, values = PackedIntegers(bits, group_size).quantize(weight)
    integers = unpack_from_int32(stored["weight_packed"], bits, torch.Size(stored["weight_shape"].tolist()))
    scales = stored["weight_scale"].repeat_interleave(128 // stored["weight_scale"].shape[1], dim=1)
    assert torch.equal((integers.float() * scales.float()).to(torch.bfloat16), values)
    assert float((values.float() - weight.float()).norm() / weight.float().norm()) < error


def test_a_name_that_the_target_has_decides_and_other_layers_only_where_it_has_none():
    names = StoredNames(
        [
            "m.layers.0.mlp.up.weight",
            "m.layers.3.mlp.up.weight_packed",
            "m.layers.3.experts.200.up.weight_packed",
            "m.layers.3.mlp.gate.weight",
            "lm_head.weight",
        ]
    )
    assert not names.is_packed("m.layers.0.mlp.up.weight")
    assert names.is_packed("m.layers.1.mlp.up.weight")
    assert names.is_packed("m.layers.1.experts.7.up.weight")
    assert not names.is_packed("m.layers.1.mlp.gate.weight")
    assert not names.is_packed("lm_head.weight")


@pytest.mark.parametrize(
    "case",
    [
        "experts in one tensor",
        "columns that groups do not divide",
        "a kind of weight that only the target has",
    ],
)
def test_a_canary_that_cannot_be_packed_as_the_target_is_left_plain(tmp_path, case):
    names = ["layers.0.up.weight_packed"]
    plain = plain_canary(tmp_path / "plain", {"hidden_size": 64}, "")
    if case == "experts in one tensor":
        save_file({"layers.0.up.weight": torch.randn(2, 64, 64)}, plain / "model.safetensors")
    elif case == "columns that groups do not divide":
        save_file({"layers.0.up.weight": torch.randn(64, 48)}, plain / "model.safetensors")
    else:
        names.append("layers.0.experts.7.up.weight_packed")
    assert not quantize_canary(
        checkpoint(tmp_path / "target", {"quantization_config": INT4}, names), plain, tmp_path / "quantized"
    )
    assert not (tmp_path / "quantized").exists()


def checkpoint(directory: Path, config: dict[str, Any], names: list[str]) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "one.safetensors")})
    )
    return directory


def plain_canary(directory: Path, config: dict[str, Any], prefix: str) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    weights = {
        f"{prefix}layers.0.{name}.weight": torch.randn(64, 64).to(torch.bfloat16) for name in ("up", "gate")
    }
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


def test_the_quantized_copy_says_so_where_the_target_does_and_the_plain_one_has_its_values(tmp_path):
    target = checkpoint(
        tmp_path / "target", KIMI_K2_5, ["l.layers.0.up.weight_packed", "l.layers.0.gate.weight"]
    )
    plain = plain_canary(tmp_path / "plain", {"text_config": {"hidden_size": 64}}, "l.")
    before = load_file(plain / "model.safetensors")
    assert quantize_canary(target, plain, tmp_path / "quantized")
    config = json.loads((tmp_path / "quantized/config.json").read_text())
    assert config == {"text_config": {"hidden_size": 64, "quantization_config": INT4}}
    stored, values = (
        load_file(tmp_path / "quantized/model.safetensors"),
        load_file(plain / "model.safetensors"),
    )
    assert set(stored) == {
        "l.layers.0.gate.weight",
        *(f"l.layers.0.up.weight_{part}" for part in ("packed", "scale", "shape")),
    }
    assert torch.equal(values["l.layers.0.gate.weight"], before["l.layers.0.gate.weight"])
    assert torch.equal(
        values["l.layers.0.up.weight"], PackedIntegers(4, 32).quantize(before["l.layers.0.up.weight"])[1]
    )


def test_without_quantized_weights_or_a_covered_way_nothing_is_written(tmp_path):
    plain = plain_canary(tmp_path / "canary", {"hidden_size": 64}, "")
    awq = {**DEEPSEEK_V3, "quantization_config": {"quant_method": "awq"}}
    cases = {
        "no-names": (DEEPSEEK_V3, []),
        "plain": (LLAMA_3_1_70B, ["layers.0.up.weight_packed"]),
        "awq": (awq, ["layers.0.up.qweight"]),
    }
    for case, (config, names) in cases.items():
        assert not quantize_canary(checkpoint(tmp_path / case, config, names), plain, tmp_path / "quantized")
    assert not (tmp_path / "quantized").exists()
