"""Layer ids: vLLM's convention everywhere, others translated at the border."""

import json

import pytest

from eagle3_data.errors import ConfigError
from eagle3_data.target.layers import resolve_layers


def test_the_default_is_eagle3s_and_the_last_layer() -> None:
    assert resolve_layers(None, "vllm", 61) == (2, 30, 58, 61)


def test_the_storys_ids_in_speculators_counting_become_vllms() -> None:
    assert resolve_layers([2, 30, 58, 60], "speculators-0.3", 61) == (3, 31, 59, 61)


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ([2, 4, 4, 8], "duplicate-layer: layer id 4 is given twice"),
        ([2, 4, 8, 9], "layer-out-of-range: layer id 9 is outside 0..8"),
        ([-1, 8], "layer-out-of-range: layer id -1"),
        ([4, 2, 8], "layers-not-ascending"),
        ([2, 4, 5], "last-layer-missing"),
    ],
)
def test_impossible_ids_are_named(layers: list[int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        resolve_layers(layers, "vllm", 8)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_what_the_advice_for_a_model_too_shallow_for_the_default_says_works(count: int) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_layers(None, "vllm", count)
    proposed = json.loads(str(refused.value).rpartition("such as ")[2])
    assert resolve_layers(proposed, "vllm", count) == tuple(proposed)
