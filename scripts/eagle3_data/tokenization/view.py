"""A page to look at before paying for GPUs: some samples, the trained tokens highlighted."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import pyarrow.parquet as pq

from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes
from eagle3_data.pages import render_page
from eagle3_data.tokenization.backends import Backend

SHOWN_SAMPLES = 12
SHOWN_TOKENS = 3000


@dataclass(frozen=True)
class ShownSample:
    """A sample as the page shows it, its token ids up to `SHOWN_TOKENS`."""

    name: str
    split: str
    tokens: int
    trained: int
    ids: tuple[int, ...]
    mask: tuple[int, ...]


def choose_samples(path: Path) -> tuple[list[ShownSample], int]:
    """Those samples of samples.parquet with the smallest hashes of their ids, the same choice in every run,
    and how many there are. One batch in memory at a time. Raises InputError."""
    try:
        file = pq.ParquetFile(path)
        chosen = heapq.nsmallest(SHOWN_SAMPLES, _places(file))
        return [_read(file, group, row) for _, group, row in chosen], file.metadata.num_rows
    except (OSError, ValueError) as error:  # pyarrow's errors derive from these
        raise InputError(
            f"{path} is not a readable Parquet file; delete it and run the same command again"
        ) from error


def _places(file: pq.ParquetFile) -> Iterator[tuple[str, int, int]]:
    """Hash, row group and row in it of every sample."""
    for group in range(file.num_row_groups):
        for row, name in enumerate(
            file.read_row_group(group, columns=["sample_id"])["sample_id"].to_pylist()
        ):
            yield hash_bytes(name.encode()), group, row


def _read(file: pq.ParquetFile, group: int, row: int) -> ShownSample:
    (values,) = file.read_row_group(group).slice(row, 1).to_pylist()
    return ShownSample(
        values["sample_id"],
        values["split"],
        values["tokens"],
        values["trained_tokens"],
        tuple(values["input_ids"][:SHOWN_TOKENS]),
        tuple(values["loss_mask"][:SHOWN_TOKENS]),
    )


def render_samples(
    samples: list[ShownSample], total: int, backend: Backend, max_length: int, generated: bool = False
) -> str:
    """The page; `generated`: the answers are the target's own. Conversations are text of strangers, so
    everything is escaped."""
    shown = [
        {
            "name": sample.name,
            "tokens": sample.tokens,
            "trained": sample.trained,
            "split": sample.split,
            "longest": sample.tokens >= max_length,
            "longer": sample.tokens > SHOWN_TOKENS,
            "pieces": list(_pieces(sample, backend)),
        }
        for sample in samples
    ]
    return render_page(
        "samples.html.jinja", title="Tokenized samples", samples=shown, total=total, generated=generated
    )


def _pieces(sample: ShownSample, backend: Backend) -> Iterator[tuple[bool, str]]:
    """Runs of context as one piece, trained tokens one by one; tokens that only together make a character
    stay together."""
    for trained, run in groupby(zip(sample.mask, sample.ids, strict=True), key=lambda pair: pair[0]):
        tokens = [token for _, token in run]
        if not trained:
            yield False, backend.decode(tokens)
            continue
        pending: list[int] = []
        for token in tokens:
            pending.append(token)
            text = backend.decode(pending)
            if not text.endswith("\ufffd"):
                yield True, text
                pending = []
        if pending:
            yield True, backend.decode(pending)
