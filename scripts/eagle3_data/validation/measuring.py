"""Measures samples one by one: every proof that needs no other sample, and what the others need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import torch

from eagle3_data.identity import ExtractionIdentity
from eagle3_data.samples import Sample
from eagle3_data.store import Store
from eagle3_data.validation.head import Head, Unknown
from eagle3_data.validation.measured import Measured
from eagle3_data.validation.reading import LastSlot, Reading, read_sample
from eagle3_data.validation.token_loss import TokenLoss, measure

SAMPLES_AT_ONCE = 8
"""Their tested rows go through the head together: 256 rows for each block of lm_head."""


class Measuring:
    """Of one extraction. Memory does not depend on the samples' lengths."""

    def __init__(
        self,
        store: Store,
        identity: ExtractionIdentity,
        hidden_size: int,
        head: Head | Unknown,
        threads: int = 1,
    ) -> None:
        self.store, self.identity, self.head = store, identity, head
        self.threads, self._hidden_size = threads, hidden_size

    def measure(self, samples: Sequence[Sample]) -> list[Measured]:
        """Raises StorageError where a sample may not be read: that rejects nothing."""
        with ThreadPoolExecutor(self.threads, "validate") as pool:
            return [one for few, readings in self._read(pool, samples) for one in self._judge(few, readings)]

    def _read(
        self, pool: ThreadPoolExecutor, samples: Sequence[Sample]
    ) -> Iterator[tuple[Sequence[Sample], list[Reading]]]:
        """Some samples at a time, the next ones read meanwhile."""
        waiting = None
        for first in range(0, len(samples), SAMPLES_AT_ONCE):
            few = samples[first : first + SAMPLES_AT_ONCE]
            started = few, [pool.submit(self._read_one, sample) for sample in few]
            if waiting:
                yield waiting[0], [future.result() for future in waiting[1]]
            waiting = started
        if waiting:
            yield waiting[0], [future.result() for future in waiting[1]]

    def _read_one(self, sample: Sample) -> Reading:
        return read_sample(sample, self.store, self.identity, self._hidden_size)

    def _judge(self, samples: Sequence[Sample], readings: list[Reading]) -> Iterator[Measured]:
        last_slots = [reading.last_slot for reading in readings if reading.last_slot]
        judged: list[tuple[str, TokenLoss | None]]
        if isinstance(self.head, Unknown) or not last_slots:
            judged = [("", None)] * len(last_slots)
        else:
            judged = _through_head(self.head, last_slots)
        results = iter(judged)
        for sample, reading in zip(samples, readings, strict=True):
            rejected, loss = next(results) if reading.last_slot else (reading.problem, None)
            yield Measured(
                sample.sample_id,
                sample.key,
                len(sample.token_ids),
                rejected,
                reading.size_bytes,
                reading.last_row,
                reading.slots,
                loss,
            )


def _through_head(head: Head, last_slots: list[LastSlot]) -> list[tuple[str, TokenLoss | None]]:
    """Of each sample why the greedy-token proof rejects it, empty where it does not, and its token loss."""
    last = torch.from_numpy(np.stack([one.states[-1] for one in last_slots]))
    wrong = set(head.disagreements(last, torch.tensor([one.greedy_token for one in last_slots])))
    reasons = [
        f"greedy-token: the engine's next token was {one.greedy_token}, but its last state does not give it;"
        " the last slot is not the state after the last layer, before the final norm, at the last token"
        if n in wrong
        else ""
        for n, one in enumerate(last_slots)
    ]
    rows = np.concatenate([one.states[:-1] for one in last_slots])
    if not len(rows):
        return [(reason, None) for reason in reasons]
    log_probabilities = head.log_probabilities(torch.from_numpy(rows))
    ends = np.cumsum([0, *(len(one.rows) for one in last_slots)])
    losses = [
        measure(log_probabilities[start:end][:, torch.from_numpy(one.next_tokens)], one.rows, one.next_tokens)
        for one, (start, end) in zip(last_slots, pairwise(ends), strict=True)
    ]
    return list(zip(reasons, losses, strict=True))
