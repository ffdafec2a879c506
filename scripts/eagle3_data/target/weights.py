"""Whether a checkpoint's weight files are complete: compares the header of each safetensors file against the
file's size, and the index against the headers. Standard library and safetensors only.

Headers alone are read, so this takes seconds for a checkpoint of any size. Tensor data that was overwritten
in place is not seen.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from eagle3_data.errors import message_of
from eagle3_data.records import JsonObject

LFS_POINTER = b"version https://git-lfs"
LARGEST_HEADER = 100_000_000
"""Bytes; the limit of the safetensors library."""
SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)\.safetensors")


def is_lfs_pointer(path: Path) -> bool:
    """Whether the file is what `git clone` leaves where git-lfs is not installed. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(len(LFS_POINTER)) == LFS_POINTER


def weight_problems(files: list[Path], weight_map: Mapping[str, str] | None) -> list[str]:
    """What is wrong with the weight files, a line for each, naming it; none where they are whole. Raises
    OSError where one cannot be read.

    `weight_map` is that of the index: the file of each tensor by its name; None where there is no index.
    """
    problems: list[str] = []
    tensors: dict[str, set[str]] = {}
    for file in files:
        try:
            tensors[file.name] = tensor_names(file)
        except ValueError as error:
            problems.append(f"{file.name} {message_of(error)}")
    if weight_map is None:
        return problems + _absent_shards(files)
    lacking: dict[str, list[str]] = {}
    for tensor, name in weight_map.items():
        if name in tensors and tensor not in tensors[name]:
            lacking.setdefault(name, []).append(tensor)
    for name, missing in lacking.items():
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        problems.append(f"{name} lacks {missing[0]}{more}, which the index says it holds")
    return problems


def tensor_names(path: Path) -> set[str]:
    """The names of a whole safetensors file's tensors. Raises OSError, and ValueError whose text says what is
    wrong with the file (`is cut short: ...`)."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        start = file.read(len(LFS_POINTER))
        if start == LFS_POINTER:
            raise ValueError("is a git-lfs pointer, not the weights; run `git lfs pull`")
        if size < 10:
            raise ValueError(f"is empty ({size} bytes)")
        length = int.from_bytes(start[:8], "little")
        if length > LARGEST_HEADER or start[8:9] != b"{":
            raise ValueError(f"is not a safetensors file (it begins with {start[:16]!r})")
        if size < 8 + length:
            raise ValueError(f"is cut short: {size:,} bytes, less than its header of {length:,}")
        file.seek(8)
        header = _parse(file.read(length))
    expected = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size < expected:
        raise ValueError(f"is cut short: {size:,} of {expected:,} bytes")
    if size > expected:
        raise ValueError(
            f"has {size - expected:,} bytes more than the {expected:,} that its header describes"
        )
    _check_with_library(path)
    return set(header)


def _parse(text: bytes) -> dict[str, JsonObject]:
    """Name to entry, without the metadata. Raises ValueError."""
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        if all(isinstance(entry["data_offsets"][1], int) for entry in header.values()):
            return header  # type: ignore[no-any-return]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        pass
    raise ValueError("has a damaged header")


def _check_with_library(path: Path) -> None:
    """Whatever else the library that will load the file refuses: unknown types, holes, wrong shapes."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except SafetensorError as error:
        raise ValueError(f"is refused by safetensors: {message_of(error)}") from error


def _absent_shards(files: list[Path]) -> list[str]:
    """Without an index, a shard's own name still says of how many it is one."""
    problems = []
    sets: dict[tuple[str, str], set[int]] = {}
    for file in files:
        if found := SHARD.fullmatch(file.name):
            sets.setdefault((found[1], found[3]), set()).add(int(found[2]))
    for (stem, total), numbers in sets.items():
        absent = (number for number in range(1, int(total) + 1) if number not in numbers)
        if first := list(islice(absent, 3)):
            names = ", ".join(f"{stem}-{number:0{len(total)}d}-of-{total}.safetensors" for number in first)
            problems.append(f"of {int(total)} shards {len(numbers)} are there; missing: {names}")
    return problems
