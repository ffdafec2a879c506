"""The ledger: one line for every row of the input, with its one fate."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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
    ]
)
"""Columns of ledger.parquet. `row` counts from 0 within its source; `reason` is a code, empty for kept rows."""

ROWS_AT_ONCE = 10_000


class LedgerWriter:
    """Writes ledger.parquet as rows come and counts the fates."""

    def __init__(self, path: Path) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._pending: list[dict[str, Any]] = []
        self.rows = 0
        self.dropped: Counter[str] = Counter()

    def add(self, entry: dict[str, Any]) -> None:
        self._pending.append(entry)
        self.rows += 1
        if entry["fate"] == "dropped":
            self.dropped[entry["reason"]] += 1
        if len(self._pending) == ROWS_AT_ONCE:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_pylist(self._pending, schema=SCHEMA))
            self._pending = []
