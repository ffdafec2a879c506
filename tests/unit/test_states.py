"""Reading states with numpy: as torch reads them, and every defect by name."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hs_connectors.fp8_utils import dequantize_fp8_tensor
from safetensors.torch import load_file, save_file

from eagle3_data.engines.base import states_metadata
from eagle3_data.engines.storage import stored_tensors
from eagle3_data.errors import SampleError
from eagle3_data.records.checksum import file_checksum
from eagle3_data.store.magnitudes import compiled_find_largest, find_largest
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


def written_in_fp8(path: Path, states: torch.Tensor) -> Path:
    save_file({**stored_tensors(states, "fp8"), "token_ids": torch.arange(len(states))}, path)
    return path


def test_states_in_fp8_are_what_speculators_reads(tmp_path: Path, states: torch.Tensor) -> None:
    sizes = torch.tensor([1e-3, 1.0, 3e4])[:, None]
    path = written_in_fp8(tmp_path / "s", states * sizes)
    opened, theirs = open_states(path), load_file(path)
    assert structure_problems(opened, range(TOKENS), LAYERS, HIDDEN, "fp8") == number_problems(opened) == []
    read = dequantize_fp8_tensor(theirs["hidden_states"], theirs["hidden_states_scales"], torch.float32)
    assert np.array_equal(opened.values(), read.numpy())
    assert np.array_equal(opened.values(np.array([3, 9]), -1), read[[3, 9], -1].numpy())
    scales = theirs["hidden_states_scales"]
    assert torch.equal(scales, scales.to(torch.bfloat16).float()), "speculators rounds them to bfloat16"
    errors = (torch.from_numpy(opened.values()) - states * sizes).norm(dim=(0, 2)) / (states * sizes).norm(
        dim=(0, 2)
    )
    assert ((errors > 0.02) & (errors < 0.03)).all(), "of each slot, however small beside another"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda s: s[600, 1].fill_(float("nan")), "not-finite"),
        (lambda s: s[0, 0, 3].fill_(float("-inf")), "not-finite"),
        (lambda s: s[699].zero_(), "all-zero"),
        (lambda s: s[5, 2].fill_(-0.0), "all-zero"),
        (lambda s: s[:, 1].fill_(0.5), "constant"),
        (lambda s: s[7, 1, 5].fill_(2.0**24), "degenerate"),
    ],
)
def test_bad_numbers_are_found_in_fp8(tmp_path: Path, states: torch.Tensor, spoil, problem: str) -> None:
    spoil(states)
    opened = open_states(written_in_fp8(tmp_path / "s", states))
    assert [name for name, _ in number_problems(opened)] == [problem]


def test_bad_scales_are_found(tmp_path: Path, states: torch.Tensor) -> None:
    tensors = {**stored_tensors(states, "fp8"), "token_ids": torch.arange(TOKENS)}
    scales = tensors["hidden_states_scales"]
    scales[5, 1], scales[6, 2] = float("inf"), -1.0
    save_file(tensors, tmp_path / "s")
    assert "2 state rows are not finite" in number_problems(open_states(tmp_path / "s"))[0][1]
    save_file({**tensors, "hidden_states_scales": scales[:, :1].contiguous()}, tmp_path / "s")
    problems = structure_problems(open_states(tmp_path / "s"), range(TOKENS), LAYERS, HIDDEN, "fp8")
    assert [name for name, _ in problems] == ["wrong-scales"]
    for lost in ({"hidden_states_scales": scales.long()}, {"hidden_states": states}):
        save_file({**tensors, **lost}, tmp_path / "s")
        with pytest.raises(SampleError):
            open_states(tmp_path / "s")


@pytest.mark.parametrize("width", [np.uint8, np.uint16, np.uint32])
def test_one_compiled_pass_finds_the_same_magnitudes_as_two_of_numpy(width: type) -> None:
    bits = np.random.default_rng(0).integers(0, np.iinfo(width).max, (9, 3, 40), width, endpoint=True)
    most = np.iinfo(width).max
    bits[0], bits[1], bits[2] = 0, most - (most >> 1), most  # 0.0, -0.0, a NaN
    bits.flags.writeable = False
    ours, theirs = np.ones((9, 3), width), np.ones((9, 3), width)
    compiled_find_largest()(bits, ours)
    find_largest(bits, theirs)
    assert np.array_equal(ours, theirs)
    assert np.array_equal(ours, (bits & (most >> 1)).max(axis=-1))


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
