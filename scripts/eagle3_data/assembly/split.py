"""Where the validation rows of a set begin, and the ratio that makes speculators cut there."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from eagle3_data.records import Record
from eagle3_data.tokenization.placement import TRAIN, trainer_ratio


@dataclass(frozen=True)
class Split(Record):
    """Rows of both sides. speculators 0.9 trains on the first int(rows * ratio) rows and needs at least one
    behind them: where none were set aside, `train_data_ratio` holds back the last conversation, and
    `set_aside` is false."""

    train: int
    validation: int
    train_data_ratio: float
    set_aside: bool


def read_split(samples: Path, without: Collection[str], wanted: float) -> Split:
    """Of `samples` (tokens/samples.parquet) but for the keys of `without`; `wanted` is the configured
    ratio. No conversation is on both sides, also where samples are left out."""
    file = pq.ParquetFile(samples)
    train = validation = of_last = 0
    last = ""
    for group in range(file.num_row_groups):
        table = file.read_row_group(group, columns=["split", "key", "conversation_id"])
        for side, key, conversation in zip(
            *(table[name].to_pylist() for name in table.column_names), strict=True
        ):
            if key in without:
                continue
            train += side == TRAIN
            validation += side != TRAIN
            of_last, last = (of_last + 1 if conversation == last else 1), conversation
    rows = train + validation
    if validation and train:
        return Split(train, validation, trainer_ratio(train, rows, wanted), True)
    held_back = of_last if of_last < rows else 1
    return Split(rows, 0, (max(rows - held_back, 0) + 0.5) / max(rows, 1), False)
