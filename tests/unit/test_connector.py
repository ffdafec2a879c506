"""The connector writes what is in the engine's cache of states, without an engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from eagle3_data.engines.base import error_path
from eagle3_data.store.states import number_problems, open_states, structure_problems

connectors = pytest.importorskip("eagle3_data.engines.vllm.connector")
BLOCKS, LAYERS, BLOCK, HIDDEN = 6, 3, 4, 32
TOKENS = list(range(10))


@pytest.fixture
def cache() -> torch.Tensor:
    """[blocks, layers, tokens of a block, H]"""
    return torch.randn(BLOCKS, LAYERS, BLOCK, HIDDEN, generator=torch.Generator().manual_seed(0)).to(
        torch.bfloat16
    )


def write(cache: torch.Tensor, path: Path, storage_dtype: str) -> None:
    connector = object.__new__(connectors.HiddenStatesConnector)
    connector._kv_cache, connector._block_size, connector._is_tp_rank_zero = cache, BLOCK, True
    connector._provenance, connector._storage_dtype = {"extraction_id": "e"}, storage_dtype
    connector._req_copy_events, connector._req_futures = {}, {}
    with ThreadPoolExecutor(1) as connector._executor:
        pending = connectors.PendingSave("r", str(path), torch.tensor(TOKENS), block_ids=[4, 1, 5])
        connector._submit_async_write(pending)
        cache.zero_()  # the blocks are another request's as soon as that returns
    assert connector._req_copy_events["r"].query()


@pytest.mark.parametrize(("storage_dtype", "dtype"), [("same", "bfloat16"), ("fp8", "fp8")])
def test_states_are_written_in_the_order_of_their_tokens(
    tmp_path: Path, cache: torch.Tensor, storage_dtype: str, dtype: str
) -> None:
    expected = torch.cat([cache[block].transpose(0, 1) for block in (4, 1, 5)])[: len(TOKENS)].float()
    write(cache, tmp_path / "k.safetensors", storage_dtype)
    states = open_states(tmp_path / "k.safetensors")
    assert structure_problems(states, TOKENS, LAYERS, HIDDEN, dtype) == number_problems(states) == []
    assert states.provenance == {"extraction_id": "e", "key": "k"}
    errors = (torch.from_numpy(states.values()) - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert (errors.max() == 0) if dtype == "bfloat16" else (0.01 < errors.median() < errors.max() < 0.04)


def test_what_cannot_be_written_leaves_an_error(tmp_path: Path, cache: torch.Tensor) -> None:
    path = tmp_path / "k.safetensors"
    path.with_suffix(".safetensors.part").mkdir()
    write(cache, path, "same")
    assert not path.exists()
    assert error_path(str(path)).exists()
