"""Samples are read with their keys proven, and a file that does not hold them is refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import damages
from eagle3_data.errors import InputError, StorageError
from eagle3_data.hashing import sample_key
from eagle3_data.samples import Sample, SampleFile
from eagle3_data.tokenization.batches import SCHEMA

IDS = [[1, 2, 3], [4], [5, 6], [2**31 - 1, 0]]


def write(path: Path, ids: list[list[int]] = IDS, keys: list[str] | None = None) -> SampleFile:
    """Two row groups of two samples."""
    rows = {
        "sample_id": [f"s:{n}" for n in range(len(ids))],
        "conversation_id": ["c"] * len(ids),
        "split": ["train"] * len(ids),
        "key": keys or [sample_key(one) for one in IDS],
        "input_ids": ids,
        "loss_mask": [[1] * len(one) for one in ids],
        "tokens": [len(one) for one in ids],
        "trained_tokens": [len(one) for one in ids],
    }
    pq.write_table(pa.table(rows, schema=SCHEMA), path, row_group_size=2)
    return SampleFile(path)


def test_samples_come_as_they_were_written(tmp_path: Path) -> None:
    file = write(tmp_path / "s.parquet")
    assert file.samples(1) == [
        Sample("s:2", sample_key(IDS[2]), (5, 6), (1, 1)),
        Sample("s:3", sample_key(IDS[3]), (2**31 - 1, 0), (1, 1)),
    ]
    assert [sample.token_ids for sample in file.all_samples()] == [tuple(ids) for ids in IDS]
    file.check_keys(0), file.check_keys(1)


@pytest.mark.parametrize("read", [SampleFile.samples, SampleFile.check_keys])
def test_tokens_that_are_not_those_of_the_key_are_refused(
    tmp_path: Path, read: Callable[[SampleFile, int], object]
) -> None:
    file = write(tmp_path / "s.parquet", [[1, 2, 3], [4], [5, 7], [2**31 - 1, 0]])
    read(file, 0)
    with pytest.raises(InputError, match="the tokens of sample s:2 are not those of its key") as caught:
        read(file, 1)
    assert "delete it and run the same command again, which tokenizes again" in str(caught.value)
    assert len(file.names(1)) == 2, "names alone prove nothing"


@pytest.mark.parametrize("row_group", [-1, 2, 10**12])
def test_a_row_group_that_does_not_exist_is_named(tmp_path: Path, row_group: int) -> None:
    file = write(tmp_path / "s.parquet")
    for read in (file.names, file.samples, file.check_keys):
        with pytest.raises(InputError, match=f"has 2 row groups, and batches.json .* {row_group};"):
            read(row_group)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def without_keys(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["key"]), path, row_group_size=2)


def flip_data(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)


def to_directory(path: Path) -> None:
    path.unlink(), path.mkdir()


def to_fifo(path: Path) -> None:
    path.unlink(), os.mkfifo(path)


@pytest.mark.parametrize(
    "damage", [cut, without_keys, flip_data, to_directory, to_fifo, lambda path: path.write_bytes(b"")]
)
def test_a_damaged_file_is_refused_with_its_remedy(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    write(path := tmp_path / "s.parquet")
    damage(path)
    with pytest.raises(InputError, match="delete it and run the same command again"):
        SampleFile(path).samples(0)


def test_a_file_that_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    write(path := tmp_path / "s.parquet")
    with damages.forbidden(path), pytest.raises(StorageError, match="permission denied") as caught:
        SampleFile(path)
    assert "delete" not in str(caught.value)
