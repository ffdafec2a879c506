"""The index of the tokenized samples, `tokens/batches.json`. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import ClassVar

from eagle3_data.records import JsonObject, MisfitError, Record


@dataclass(frozen=True)
class SampleName(Record):
    """A sample by its id in the data and by its content."""

    sample_id: str
    key: str


@dataclass(frozen=True)
class BatchEntry(Record):
    """One batch: its row group of samples.parquet, how many samples and tokens it has, the longest sample,
    and the hash of its samples."""

    row_group: int
    samples: int
    tokens: int
    fingerprint: str
    longest: int = 0


@dataclass(frozen=True)
class SealedFile(Record):
    """A file as it was when it was sealed (`eagle3_data.records.seal`)."""

    size_bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class BatchIndex(Record):
    """What tokenization made. `files` seals the files beside it; an earlier version's index has none.
    `dropped` and `dropped_turns` count by reason; `notices` counts by source and kind what kept rows lost;
    `tokenizer` describes the tokenizer, `generation` how the target answered (empty: the answers are the data
    set's), `sources` the files of each source."""

    on_damage: ClassVar[str] = "delete it and run the same command again, which tokenizes again"

    batches: dict[str, BatchEntry]
    samples: int
    tokens: int
    files: dict[str, SealedFile] = field(default_factory=dict)
    trained_tokens: int = 0
    longest: int = 0
    rows: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    dropped_turns: dict[str, int] = field(default_factory=dict)
    truncated: int = 0
    without_mask: int = 0
    notices: dict[str, dict[str, int]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    split: JsonObject = field(default_factory=dict)
    tokenizer: JsonObject = field(default_factory=dict)
    generation: JsonObject = field(default_factory=dict)
    sources: dict[str, dict[str, SealedFile]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in self.batches:
            if not re.fullmatch("[0-9]{5,9}", name):
                raise MisfitError(f"has a batch named {name[:20]!r}, which is not a number", "batches")
