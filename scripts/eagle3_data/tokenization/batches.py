"""Writes batches, one Parquet row group each, in training order."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.hashing import hash_json
from eagle3_data.records.batch_index import BatchEntry
from eagle3_data.tokenization.placement import PlacedSample, StartsBatch

SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("conversation_id", pa.string()),
        ("split", pa.string()),
        ("key", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("loss_mask", pa.list_(pa.uint8())),
        ("tokens", pa.int32()),
        ("trained_tokens", pa.int32()),
    ]
)
"""Columns of samples.parquet."""


class BatchWriter:
    """Writes samples.parquet, counts trained tokens, and keeps what batches.json says of each batch."""

    def __init__(self, path: Path, starts_batch: StartsBatch, vocab_size: int) -> None:
        self._writer = pq.ParquetWriter(path, SCHEMA, compression="zstd", use_dictionary=["split"])
        self._starts_batch = starts_batch
        self._pending: list[PlacedSample] = []
        self._pending_tokens = 0
        self.batches: dict[str, BatchEntry] = {}
        self.rows: Counter[str] = Counter()
        self.frequencies = np.zeros(vocab_size, np.int64)
        """How often each token id is trained, int64 [V]."""

    def add(self, placed: PlacedSample) -> None:
        if self._starts_batch(placed.sample.tokens) and self._pending:
            self._flush()
        self._pending.append(placed)
        self._pending_tokens += placed.sample.tokens
        self.rows[placed.split] += 1

    def close(self) -> None:
        if self._pending:
            self._flush()
        self._writer.close()

    def totals(self) -> dict[str, int]:
        """Sums over the batches, as batches.json has them."""
        batches = self.batches.values()
        return {
            "samples": sum(batch.samples for batch in batches),
            "tokens": sum(batch.tokens for batch in batches),
            "trained_tokens": int(self.frequencies.sum()),
            "longest": max((batch.longest for batch in batches), default=0),
        }

    def _flush(self) -> None:
        samples = [placed.sample for placed in self._pending]
        lengths = [sample.tokens for sample in samples]
        ids = np.frombuffer(b"".join(sample.ids for sample in samples), "<i4").astype(np.int32, copy=False)
        mask = np.frombuffer(b"".join(sample.mask for sample in samples), np.uint8)
        self.frequencies += np.bincount(ids[mask != 0], minlength=len(self.frequencies))
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
        table = pa.table(
            {
                "sample_id": [placed.sample_id for placed in self._pending],
                "conversation_id": [placed.conversation_id for placed in self._pending],
                "split": [placed.split for placed in self._pending],
                "key": [sample.key for sample in samples],
                "input_ids": pa.ListArray.from_arrays(offsets, pa.array(ids)),
                "loss_mask": pa.ListArray.from_arrays(offsets, pa.array(mask)),
                "tokens": pa.array(lengths, pa.int32()),
                "trained_tokens": pa.array([sample.trained_tokens for sample in samples], pa.int32()),
            },
            schema=SCHEMA,
        )
        number = len(self.batches)
        self._writer.write_table(table, row_group_size=len(samples))
        self.batches[f"{number:05d}"] = BatchEntry(
            row_group=number,
            samples=len(samples),
            tokens=self._pending_tokens,
            longest=max(lengths),
            fingerprint=hash_json([[placed.sample_id, placed.sample.key] for placed in self._pending]),
        )
        self._pending, self._pending_tokens = [], 0
