"""Reading states with numpy: as torch reads them, and every defect by name."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from eagle3_data.engines.base import states_metadata
from eagle3_data.errors import SampleError
from eagle3_data.states import file_checksum, number_problems, open_states, structure_problems

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
