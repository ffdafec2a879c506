"""Reading states with numpy: as torch reads them, and every defect by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eagle3_data.engines.base import states_metadata
from eagle3_data.errors import SampleError
from eagle3_data.records.checksum import file_checksum
from eagle3_data.store.states import number_problems, open_states, structure_problems

TOKENS, LAYERS, HIDDEN = 700, 3, 16
"""More tokens than a chunk of the checks."""


def written(path: Path, states: torch.Tensor) -> Path:
    save_file(
        {"hidden_states": states, "token_ids": torch.arange(len(states))},
        path,
        metadata=states_metadata({"extraction_id": "e"}, "k"),
    )
    return path


@pytest.fixture
def states() -> torch.Tensor:
    return torch.randn(TOKENS, LAYERS, HIDDEN, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_values_are_exactly_torchs(tmp_path: Path, states: torch.Tensor, dtype: torch.dtype) -> None:
    opened = open_states(written(tmp_path / "s", states.to(dtype)))
    assert np.array_equal(opened.values(), states.to(dtype).float().numpy())
    assert np.array_equal(opened.values(slice(-1, None), 1), states[-1:, 1].float().numpy())
    assert opened.token_ids.tolist() == list(range(TOKENS))
    assert opened.provenance == {"extraction_id": "e", "key": "k"}
    assert number_problems(opened) == []


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda s: s[600, 1].fill_(float("nan")), "not-finite"),
        (lambda s: s[0, 0, 3].fill_(float("-inf")), "not-finite"),
        (lambda s: s[699].zero_(), "all-zero"),
        (lambda s: s[-300:].zero_(), "all-zero"),
        (lambda s: s[5, 2].fill_(-0.0), "all-zero"),
        (lambda s: s[:, 1].fill_(0.5), "constant"),
    ],
)
def test_bad_numbers_are_found(tmp_path: Path, states: torch.Tensor, spoil, problem: str) -> None:
    spoil(states)
    assert [name for name, _ in number_problems(open_states(written(tmp_path / "s", states)))] == [problem]


def test_a_wrong_structure_is_found(tmp_path: Path, states: torch.Tensor) -> None:
    opened = open_states(written(tmp_path / "s", states))
    ids = list(range(TOKENS))
    assert structure_problems(opened, ids, LAYERS, HIDDEN, "bfloat16") == []
    assert [name for name, _ in structure_problems(opened, ids, LAYERS + 1, HIDDEN, "bfloat16")] == [
        "wrong-shape"
    ]
    assert [name for name, _ in structure_problems(opened, ids, LAYERS, HIDDEN, "float32")] == ["wrong-dtype"]
    assert [name for name, _ in structure_problems(opened, [*ids[:-1], 0], LAYERS, HIDDEN, "bfloat16")] == [
        "wrong-token-ids"
    ]
    assert {name for name, _ in structure_problems(opened, ids[:-1], LAYERS, HIDDEN, "bfloat16")} == {
        "wrong-shape",
        "wrong-token-ids",
    }


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_file_is_no_states_file(tmp_path: Path, states: torch.Tensor, keep: int) -> None:
    path = written(tmp_path / "s", states)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(SampleError, match="not a whole file"):
        open_states(path)


def test_half_precision_is_refused(tmp_path: Path, states: torch.Tensor) -> None:
    with pytest.raises(SampleError):
        open_states(written(tmp_path / "s", states.half()))


def test_the_checksum_is_of_all_bytes(tmp_path: Path, states: torch.Tensor) -> None:
    path = written(tmp_path / "s", states)
    before = file_checksum(path)
    with open(path, "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)[0]
        file.seek(-1, 2)
        file.write(bytes([last ^ 1]))
    assert file_checksum(path) != before


def damaged_headers() -> dict[str, Any]:
    """What stands in a header instead of what is right, by its kind."""
    entry = {"dtype": "BF16", "shape": [2, 2, 4], "data_offsets": [0, 32]}
    ids = {"dtype": "I64", "shape": [2], "data_offsets": [32, 48]}
    whole = {"hidden_states": entry, "token_ids": ids, "__metadata__": {"provenance": "{}"}}
    return {
        "metadata a text": {**whole, "__metadata__": "provenance"},
        "metadata a list": {**whole, "__metadata__": [1]},
        "provenance a number": {**whole, "__metadata__": {"provenance": 3}},
        "provenance a list": {**whole, "__metadata__": {"provenance": "[1, 2]"}},
        "provenance no JSON": {**whole, "__metadata__": {"provenance": "{"}},
        "provenance nested": {**whole, "__metadata__": {"provenance": "[" * 100_000}},
        "header a list": [whole],
        "header null": None,
        "no states": {"token_ids": ids},
        "states null": {**whole, "hidden_states": None},
        "offsets swapped": {**whole, "hidden_states": {**entry, "data_offsets": [32, 0]}},
        "offsets negative": {**whole, "hidden_states": {**entry, "data_offsets": [-32, 0]}},
        "offsets beyond": {**whole, "token_ids": {**ids, "data_offsets": [32, 4800]}},
        "offsets texts": {**whole, "hidden_states": {**entry, "data_offsets": ["0", "32"]}},
        "offsets three": {**whole, "hidden_states": {**entry, "data_offsets": [0, 16, 32]}},
        "offsets floats": {**whole, "hidden_states": {**entry, "data_offsets": [0.0, 32.0]}},
        "shape negative": {**whole, "hidden_states": {**entry, "shape": [-1, 2, 4]}},
        "shape too large": {**whole, "hidden_states": {**entry, "shape": [2**62, 2, 4]}},
        "shape a text": {**whole, "hidden_states": {**entry, "shape": "2"}},
        "dtype a list": {**whole, "hidden_states": {**entry, "dtype": ["BF16"]}},
        "dtype unknown": {**whole, "hidden_states": {**entry, "dtype": "F8"}},
    }


@pytest.mark.parametrize("kind", damaged_headers())
def test_a_header_that_says_something_odd_is_a_damaged_file(tmp_path: Path, kind: str) -> None:
    header = json.dumps(damaged_headers()[kind]).encode()
    path = tmp_path / "s.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(48))
    with pytest.raises(SampleError, match="is not a whole file of hidden states"):
        open_states(path)


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff" * 8, b"\xff" * 100, bytes(8), bytes(100)])
def test_a_file_of_other_bytes_is_a_damaged_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)
    with pytest.raises(SampleError, match="is not a whole file"):
        open_states(tmp_path / "s")


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "s")
    with pytest.raises(SampleError, match="is not a whole file"):
        open_states(tmp_path / "s")
    with pytest.raises(OSError, match="not a regular file"):
        file_checksum(tmp_path / "s")
