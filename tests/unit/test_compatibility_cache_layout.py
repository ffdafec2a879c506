"""A client's own copy of what reads vLLM's cache, against the layout of the tree."""

import pytest
from compatibility_trees import CONNECTOR_PATH, VLLM, client, symbols

from eagle3_data.compatibility.vllm.cache_layout import check_cache_layout

HEADS_LAST = """
def {name}(kv_cache, slot_mapping, num_tokens):
    block_size = kv_cache.shape[1]
    return kv_cache[slot_mapping // block_size, slot_mapping % block_size][:num_tokens]
"""
FLAT = """
def {name}(kv_cache, slot_mapping, num_tokens):
    return kv_cache.flatten(0, 1)[slot_mapping][:num_tokens]
"""
HEADS_FIRST = """
def {name}(kv_cache, slot_mapping, num_tokens):
    block_size = kv_cache.shape[2]
    return kv_cache[slot_mapping // block_size, :, slot_mapping % block_size][:num_tokens]
"""
OTHER = "def {name}(kv_cache, slots, n):\n    return torch.ops.mine(kv_cache, slots)\n"


@pytest.mark.parametrize(
    ("theirs", "own", "level"),
    [
        (HEADS_FIRST, FLAT, "fail"),
        (HEADS_FIRST, HEADS_LAST, "fail"),
        (HEADS_LAST, HEADS_FIRST, "fail"),
        (HEADS_FIRST, HEADS_FIRST, None),
        (FLAT, HEADS_LAST, None),
        (HEADS_FIRST, OTHER, "unknown"),
        ("", FLAT, None),
    ],
)
def test_a_copy_for_another_layout_is_found(tmp_path, theirs, own, level):
    module = VLLM[CONNECTOR_PATH] + theirs.format(name="extract_from_kv_cache")
    tree = symbols(tmp_path, {CONNECTOR_PATH: module})
    found = list(check_cache_layout(client(own.format(name="_extract_from_kv_cache")), tree))
    assert [(f.id, f.level) for f in found] == ([("cache-layout", level)] if level else [])
