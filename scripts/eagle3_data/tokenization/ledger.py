"""The ledger: one line for every row of the input, kept or dropped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.text import counted
from eagle3_data.tokenization.placement import PlacedSample
from eagle3_data.tokenization.reading.rows import NOTICES, REASONS, Drop, Outcome

SCHEMA = pa.schema(
    [
        ("source", pa.string()),
        ("row", pa.int64()),
        ("conversation_id", pa.string()),
        ("file_id", pa.string()),
        ("fate", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("sample_ids", pa.list_(pa.string())),
        ("tokens", pa.int64()),
        ("trained_tokens", pa.int64()),
        ("truncated", pa.bool_()),
        ("notices", pa.list_(pa.string())),
    ]
)
"""Columns of ledger.parquet. `row` counts from 0 within its source, `file_id` is the row's own name; `reason`
is empty for kept rows, `notices` for dropped ones."""

UNLESS_ALL_LACK_IT = "missing-field"
"""The notice that is only worth a line if every kept row of the source has it."""

ROWS_AT_ONCE = 4096


class LedgerRow(TypedDict):
    """One input row, as `SCHEMA` has it."""

    source: str
    row: int
    conversation_id: str
    file_id: str
    fate: str
    reason: str
    detail: str
    sample_ids: list[str]
    tokens: int
    trained_tokens: int
    truncated: bool
    notices: list[str]


@dataclass
class Noticed:
    """A notice of one source: the first row that has it, how many do, and how often in all."""

    code: str
    first: str
    rows: int = 0
    count: int = 0


class LedgerWriter:
    """Writes ledger.parquet as rows come and counts what became of them.

    `dropped` counts rows by reason; `dropped_turns` the turns of kept rows that are not trained;
    `truncated` the samples that were cut; `without_mask` the kept rows of token ids that are trained whole
    because they have no mask; `notices` what else kept rows lost.
    """

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._pending: list[LedgerRow] = []
        self._examples: dict[str, str] = {}
        self.rows = 0
        self.dropped: Counter[str] = Counter()
        self.dropped_turns: Counter[str] = Counter()
        self.truncated = 0
        self.without_mask = 0
        self._kept: Counter[str] = Counter()
        self._noticed: dict[tuple[str, str], Noticed] = {}

    def add(
        self,
        source: str,
        conversation_id: str,
        outcome: Outcome,
        kept: Sequence[PlacedSample],
        dropped: Sequence[Drop],
    ) -> None:
        """A row of which any sample is kept is kept; its detail then lists the samples that are not."""
        reason = "" if kept else dropped[0].reason
        detail = "; ".join(filter(None, (_detail(drop, reason) for drop in dropped)))
        self.rows += 1
        truncated = sum(placed.sample.truncated for placed in kept)
        self.truncated += truncated
        if kept:
            self.dropped_turns.update(drop.reason for drop in dropped)
            self.without_mask += outcome.whole
            self._kept[source] += 1
            for notice in outcome.notices:
                noticed = self._noticed.setdefault(
                    (source, notice.label), Noticed(notice.code, conversation_id)
                )
                noticed.rows += 1
                noticed.count += notice.count
        else:
            self.dropped[reason] += 1
            self._examples.setdefault(reason, f"first {conversation_id}" + (f": {detail}" if detail else ""))
        self._pending.append(
            {
                "source": source,
                "row": outcome.index,
                "conversation_id": conversation_id,
                "file_id": outcome.file_id,
                "fate": "kept" if kept else "dropped",
                "reason": reason,
                "detail": detail,
                "sample_ids": [placed.sample_id for placed in kept],
                "tokens": sum(placed.sample.tokens for placed in kept),
                "trained_tokens": sum(placed.sample.trained_tokens for placed in kept),
                "truncated": truncated > 0,
                "notices": [
                    f"{notice.label} x {notice.count}" if notice.count > 1 else notice.label
                    for notice in (outcome.notices if kept else ())
                ],
            }
        )
        if len(self._pending) == ROWS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def explain_drops(self) -> list[str]:
        """A line for each reason, the most frequent first."""
        return [
            f"{count} x {reason}: {REASONS[reason]} ({self._examples[reason]})"
            for reason, count in self.dropped.most_common()
        ]

    def remarks(self, max_length: int) -> list[str]:
        """Lines for what kept rows have lost, or lack."""
        turns = ", ".join(f"{count} x {reason}" for reason, count in self.dropped_turns.most_common())
        untrained = self.dropped_turns.total()
        lines = {
            f"not trained in these rows: {counted(untrained, 'turn')} ({turns})": untrained,
            f"{counted(self.truncated, 'sample')} cut to tokenization.max_length ({max_length})": (
                self.truncated
            ),
            f"{counted(self.without_mask, 'row')} of token ids without a loss mask: all their tokens are"
            " trained": (self.without_mask),
        }
        return [line for line, count in lines.items() if count] + [
            f"{noticed.count} x {label}: {NOTICES[noticed.code]} (first {noticed.first})"
            for _, label, noticed in self._worth_a_line()
        ]

    def notices(self) -> dict[str, dict[str, int]]:
        """By source and label, how often kept rows have each notice."""
        found: dict[str, dict[str, int]] = {}
        for source, label, noticed in self._worth_a_line():
            found.setdefault(source, {})[label] = noticed.count
        return found

    def _worth_a_line(self) -> Iterator[tuple[str, str, Noticed]]:
        for (source, label), noticed in self._noticed.items():
            if noticed.code != UNLESS_ALL_LACK_IT or noticed.rows == self._kept[source]:
                yield source, label, noticed

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_pylist(self._pending, schema=SCHEMA))
            self._pending = []


def _detail(drop: Drop, reason: str) -> str:
    text = " ".join(filter(None, (drop.suffix, "" if drop.reason == reason else drop.reason, drop.detail)))
    return text.encode(errors="replace").decode()  # it may repeat a name from the data
