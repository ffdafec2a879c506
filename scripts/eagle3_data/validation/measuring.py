"""Measures samples one by one: every proof that needs no other sample, and what the others need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
GREEDY_AT_ONCE = 256


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
        measured: list[Measured] = []
        last_states: dict[int, tuple[np.ndarray, int]] = {}
        with ThreadPoolExecutor(self.threads, "validate") as pool:
            for few, readings in self._read(pool, samples):
                losses = iter(self._losses([one.last_slot for one in readings if one.last_slot]))
                for sample, reading in zip(few, readings, strict=True):
                    if reading.last_slot:
                        last = reading.last_slot.states[-1].copy(), reading.last_slot.greedy_token
                        last_states[len(measured)] = last
                    loss = next(losses) if reading.last_slot else None
                    measured.append(_measured(sample, reading, loss))
        for place, reason in self._greedy_faults(last_states).items():
            measured[place] = replace(measured[place], rejected=reason)
        return measured

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

    def _losses(self, last_slots: list[LastSlot]) -> list[TokenLoss | None]:
        if isinstance(self.head, Unknown) or not any(len(one.rows) for one in last_slots):
            return [None] * len(last_slots)
        rows = np.concatenate([one.states[:-1] for one in last_slots])
        log_probabilities = self.head.log_probabilities(torch.from_numpy(rows))
        ends = np.cumsum([0, *(len(one.rows) for one in last_slots)])
        return [
            measure(
                log_probabilities[start:end][:, torch.from_numpy(one.next_tokens)], one.rows, one.next_tokens
            )
            for one, (start, end) in zip(last_slots, pairwise(ends), strict=True)
        ]

    def _greedy_faults(self, last_states: dict[int, tuple[np.ndarray, int]]) -> dict[int, str]:
        """By the place of a sample, why its last state [H] is not what gives the engine's next token."""
        faults: dict[int, str] = {}
        if isinstance(self.head, Unknown):
            return faults
        places = list(last_states)
        for first in range(0, len(places), GREEDY_AT_ONCE):
            some = places[first : first + GREEDY_AT_ONCE]
            states = torch.from_numpy(np.stack([last_states[place][0] for place in some]))
            greedy = [last_states[place][1] for place in some]
            for n in self.head.disagreements(states, torch.tensor(greedy), self.identity.stored_dtype):
                faults[some[n]] = (
                    f"greedy-token: the engine's next token was {greedy[n]}, but its last state does not give"
                    " it; the last slot is not the state after the last layer, before the final norm, at the"
                    " last token"
                )
        return faults


def _measured(sample: Sample, reading: Reading, loss: TokenLoss | None) -> Measured:
    return Measured(
        sample.sample_id,
        sample.key,
        len(sample.token_ids),
        reading.problem,
        reading.size_bytes,
        reading.last_row,
        reading.slots,
        loss,
    )
