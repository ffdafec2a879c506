"""Stored states beside transformers' own: right ones pass, and what is wrong has its right name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.passes.reference import rounds_activations, wanted
from eagle3_data.store.states import States
from eagle3_data.validation import reference
from eagle3_data.validation.layer_errors import StoredSample
from eagle3_data.validation.reference import ReferenceTarget, TooCostlyError, compare
from eagle3_data.validation.reference_cost import LONGEST_S, Size, forecast, rough_size
from eagle3_data.validation.reference_verdict import EngineReference, Reference
from quantized import FP8_PER_TENSOR, INT4
from tiny_models import VOCABULARY, tiny_model
from unit.test_head import written

SLOTS = (1, 3, 4, 6)
VERSIONS = {"vllm": "1"}
DENSE, EXPERTS = "LlamaForCausalLM", "DeepseekV3ForCausalLM"


class Stored:
    """A checkpoint, and what an engine in bfloat16 stores of three samples, with all layers beside it."""

    def __init__(self, directory: Path, architecture: str) -> None:
        self.architecture = architecture
        self.directory = written(tiny_model(architecture, num_hidden_layers=6).bfloat16(), directory)
        generator = torch.Generator().manual_seed(1)
        self.ids = [
            torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in (100, 48, 100)
        ]
        model = ReferenceModel(str(directory), torch.bfloat16)
        self.layers = [model.states(ids, range(7))[0].bfloat16() for ids in self.ids]

    def slots(self, sample: int = 0) -> torch.Tensor:
        """Right states [T, 4, H]."""
        return self.layers[sample][:, list(SLOTS)].clone()

    def compare(self, *states: torch.Tensor) -> EngineReference:
        """The verdict on `states` of the first samples."""
        samples = [
            StoredSample(
                f"s{number}",
                f"k{number}",
                tuple(self.ids[number]),
                States("BF16", one.view(torch.uint16).numpy(), np.array(self.ids[number]), {}),
                len(self.ids[number]),
            )
            for number, one in enumerate(states)
        ]
        target = ReferenceTarget(self.directory, False, 1, SLOTS, "bfloat16", "bfloat16", False)
        (verdict,) = compare(target, "id", [(VERSIONS, samples)])
        return verdict


@pytest.fixture(scope="module", params=[DENSE, EXPERTS])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    return Stored(tmp_path_factory.mktemp("target"), request.param)


def test_right_states_pass_and_an_off_by_one_would_be_unmistakable(stored: Stored) -> None:
    verdict = stored.compare(*(stored.slots(sample) for sample in range(3)))
    assert (verdict.passed, verdict.faults, verdict.undecided) == (True, [], "")
    assert verdict.samples == {"k0": 100, "k1": 48, "k2": 100}
    assert [slot.layer for slot in verdict.slots] == list(SLOTS)
    for slot in verdict.slots:
        assert slot.median < 0.1
        assert slot.contrast > 5
    figures = verdict.proof().figures
    assert figures["smallest_contrast"] == min(slot.contrast for slot in verdict.slots)
    assert EngineReference.from_json(verdict.to_json()) == verdict


def final_norm(one: Stored) -> torch.Tensor:
    from eagle3_data.validation.head import read_head

    return read_head(one.directory).normalized(one.layers[0][:, 6])


Damage = Callable[[Stored, torch.Tensor], object]


def put(states: torch.Tensor, slot: int, values: torch.Tensor, rows: slice = slice(None)) -> None:
    states[rows, slot] = values[rows].to(states.dtype)


def swap(states: torch.Tensor, first: int, second: int) -> None:
    states[:, [first, second]] = states[:, [second, first]].clone()


def noise(states: torch.Tensor, slot: int, size: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = states[:, slot].float()
    scale = values.norm(dim=-1, keepdim=True) / values.shape[-1] ** 0.5
    put(states, slot, values + size * scale * torch.randn(values.shape, generator=generator))


DAMAGES: dict[str, tuple[Damage, str]] = {
    **{
        f"slots {a} and {b} swapped": (
            lambda _, states, a=a, b=b: swap(states, a, b),
            f"slots {a} and {b} (layers {SLOTS[a]} and {SLOTS[b]}) are swapped",
        )
        for a in range(4)
        for b in range(a + 1, 4)
    },
    **{
        f"slot {slot} holds layer {layer}": (
            lambda one, states, slot=slot, layer=layer: put(states, slot, one.layers[0][:, layer]),
            f"slot {slot} (layer {SLOTS[slot]}) holds "
            + ("the embeddings" if layer == 0 else f"the states after layer {layer}"),
        )
        for slot, layer in ((0, 0), (0, 2), (1, 2), (2, 5), (3, 5))
    },
    "slot 1 repeats slot 0": (
        lambda _, states: put(states, 1, states[:, 0]),
        "slot 1 (layer 3) holds the states after layer 1",
    ),
    "after the final norm": (
        lambda one, states: put(states, 3, final_norm(one)),
        "slot 3 (layer 6) holds the states after the final norm",
    ),
    "noise of 10 %": (lambda _, states: noise(states, 1, 0.1), "slot 1 (layer 3) is off by "),
    "twice as large": (lambda _, states: put(states, 2, states[:, 2] * 2), "slot 2 (layer 4) "),
    "one slot a token late": (
        lambda _, states: put(states, 1, states[:, 1].roll(1, 0)),
        "slot 1 (layer 3) holds at every token the states of the token before it",
    ),
    "all slots a token early": (
        lambda _, states: states.copy_(states.roll(-1, 0)),
        "slot 3 (layer 6) holds at every token the states of the token after it",
    ),
    "another sample of the same length": (
        lambda one, states: states.copy_(one.slots(2)),
        "slot 0 (layer 1) holds the states of no layer",
    ),
    "a stale chunk": (
        lambda one, states: states[32:64].copy_(one.slots(2)[32:64]),
        "slot 0 (layer 1) is wrong at 32 of 100 tokens, 32 to 63",
    ),
    "a stale end": (
        lambda one, states: states[90:].copy_(one.slots(2)[90:]),
        "is wrong at 10 of 100 tokens, 90 to 99",
    ),
    "another request's beginning": (
        lambda one, states: states[:16].copy_(one.slots(2)[:16]),
        "is wrong at 16 of 100 tokens, 0 to 15",
    ),
    "not finite": (lambda _, states: states[3].fill_(float("inf")), "is not finite"),
}


ALSO_OF_EXPERTS = {"slots 1 and 2 swapped", "slot 1 holds layer 2", "noise of 10 %", "a stale chunk"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_caught_with_its_name(stored: Stored, damage: str) -> None:
    if stored.architecture == EXPERTS and damage not in ALSO_OF_EXPERTS:
        return
    change, name = DAMAGES[damage]
    states = stored.slots()
    change(stored, states)
    verdict = stored.compare(states, stored.slots(1))
    assert any(name in fault for fault in verdict.faults), verdict.faults
    assert not verdict.passed
    assert "sample s0" in verdict.faults[0]
    assert not any("sample s1" in fault for fault in verdict.faults)


def test_without_experts_less_is_seen(tmp_path: Path) -> None:
    """5 % in a middle slot, and a single wrong row: where a router decides, either could be its doing."""
    stored = Stored(tmp_path, DENSE)
    states = stored.slots()
    noise(states, 1, 0.05)
    states[99] = stored.slots(2)[99]
    faults = stored.compare(states).faults
    assert [fault.partition(") ")[2].partition("(k0): ")[0] for fault in faults] != []
    assert any("slot 1 (layer 3) is off by 5" in fault for fault in faults)
    assert any("slot 2 (layer 4) is wrong at 1 of 100 tokens, 99 to 99" in fault for fault in faults)


def test_noise_of_bfloat16_is_none(stored: Stored) -> None:
    states = stored.slots()
    for slot in range(4):
        noise(states, slot, 2**-8)
    assert stored.compare(states).passed


def test_where_layers_are_alike_nothing_is_told(tmp_path: Path) -> None:
    model = tiny_model(DENSE, num_hidden_layers=6)
    with torch.no_grad():
        for layer in model.model.layers[3:]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    stored = Stored.__new__(Stored)
    stored.directory, stored.ids = written(model.bfloat16(), tmp_path), [list(range(3, 60))]
    stored.layers = [ReferenceModel(str(tmp_path), torch.bfloat16).states(stored.ids[0], range(7))[0]]
    verdict = stored.compare(stored.slots())
    assert not verdict.faults
    assert "slot 2 (layer 4): the states after layer 3 are nearly as near" in verdict.undecided
    assert verdict.proof().unknown == verdict.undecided


# ---- cost


def test_what_costs_too_much_is_not_started(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "available_bytes", lambda: 1 << 20)
    with pytest.raises(TooCostlyError, match=r"would take .* GiB of memory"):
        stored.compare(stored.slots())
    monkeypatch.setattr(reference, "forecast", lambda *_: forecast(Size(10**16, 1, 1, 1, 1), 1, 1, "cpu", 1))
    with pytest.raises(TooCostlyError, match=r"would take 11111\.1 hours, and is not made above 4"):
        stored.compare(stored.slots())


def test_a_trillion_parameters_in_four_bits_are_affordable() -> None:
    """Kimi-K2.5: 61 layers of 384 experts, 595 GB."""
    size = rough_size(595_000_000_000, "compressed-tensors", 61, 7168)
    expected = forecast(size, 2 * 300, 4, "cuda", 1)
    assert expected.seconds < LONGEST_S
    assert expected.memory_bytes < 160 << 30


# ---- which samples


@pytest.mark.parametrize(
    ("lengths", "number", "places"),
    [
        ([200, 40, 10, 90, 3000], 2, [1, 3]),  # 40 and 200 tokens
        ([200, 40, 10, 90, 3000], 1, [1]),
        (list(range(100, 200)), 3, [0, 25, 50]),
        ([5, 3, 9], 2, [2]),  # none is long enough
        ([50], 4, [0]),
    ],
)
def test_short_samples_and_those_of_medium_length_are_chosen(
    lengths: list[int], number: int, places: list[int]
) -> None:
    assert wanted(lengths, number) == places


def test_which_engines_round_activations() -> None:
    assert not rounds_activations({}, {})
    assert not rounds_activations({"quantization_config": INT4}, {})
    assert rounds_activations({"quantization_config": FP8_PER_TENSOR}, {})
    assert rounds_activations({}, {"quantization": "fp8"})
    assert rounds_activations({}, {"kv_cache_dtype": "fp8_e4m3"})
    group = {"weights": {"num_bits": 8}, "input_activations": {"num_bits": 8}}
    config = {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"0": group}}}
    assert rounds_activations(config, {})


def test_a_reference_that_was_not_made_says_so() -> None:
    off = Reference.without("id", "off", "validation.reference_samples is 0")
    (proof,) = off.proofs()
    assert (proof.samples, proof.unknown) == (0, "validation.reference_samples is 0")
    assert off.describe() == ["reference: not proven: validation.reference_samples is 0"]
