"""Measures samples one by one: every proof that needs no other sample, and what the others need."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
import torch

from eagle3_data.identity import ExtractionIdentity
from eagle3_data.samples import Sample
from eagle3_data.store import Store
from eagle3_data.store.magnitudes import FindLargest, find_largest
from eagle3_data.validation.head import Head, Unknown
from eagle3_data.validation.measured import Measured
from eagle3_data.validation.reading import LastSlot, Reading, read_sample
from eagle3_data.validation.token_loss import TokenLoss, measure

SAMPLES_AT_ONCE = 8
"""Their tested rows go through the head together: 256 rows for each block of lm_head."""
GREEDY_AT_ONCE = 256
"""Samples whose last states go through the head together: with fewer, reading lm_head takes longer than what
is computed with it."""
GREEDY_FAULT = (
    "greedy-token: the engine's next token was {token}, but its last state does not give it; the last slot is"
    " not the state after the last layer, before the final norm, at the last token"
)


@dataclass
class Begun:
    """Samples of which the greedy tokens are still to be looked at: those at `places` among the measured, by
    their last states [H] float32 and the engine's next tokens."""

    measured: list[Measured] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    last_states: list[np.ndarray] = field(default_factory=list)
    greedy_tokens: list[int] = field(default_factory=list)


class Measuring:
    """Of one extraction. Memory does not depend on the samples' lengths."""

    def __init__(
        self,
        store: Store,
        identity: ExtractionIdentity,
        hidden_size: int,
        head: Head | Unknown,
        threads: int = 1,
        find_largest: FindLargest = find_largest,
    ) -> None:
        self.store, self.identity, self.head = store, identity, head
        self.threads, self._hidden_size, self._find_largest = threads, hidden_size, find_largest

    def measure(self, samples: Sequence[Sample]) -> list[Measured]:
        """Raises StorageError where a sample may not be read: that rejects nothing."""
        return self.finish([self.begin(samples)])[0]

    def begin(self, samples: Sequence[Sample]) -> Begun:
        """All but the greedy tokens, which take lm_head once for however many samples. Raises StorageError
        where a sample may not be read: that rejects nothing."""
        begun = Begun()
        with ThreadPoolExecutor(self.threads, "validate") as pool:
            for few, readings in self._read(pool, samples):
                losses = iter(self._losses([one.last_slot for one in readings if one.last_slot]))
                for sample, reading in zip(few, readings, strict=True):
                    if reading.last_slot:
                        begun.places.append(len(begun.measured))
                        begun.last_states.append(reading.last_slot.states[-1].copy())
                        begun.greedy_tokens.append(reading.last_slot.greedy_token)
                    loss = next(losses) if reading.last_slot else None
                    begun.measured.append(_measured(sample, reading, loss))
        return begun

    def finish(self, groups: Sequence[Begun]) -> list[list[Measured]]:
        """The samples of each group, the greedy tokens of all looked at together."""
        finished = [list(group.measured) for group in groups]
        if isinstance(self.head, Unknown):
            return finished
        owners = [(n, place) for n, group in enumerate(groups) for place in group.places]
        states = [state for group in groups for state in group.last_states]
        greedy = [token for group in groups for token in group.greedy_tokens]
        dtype = self.identity.stored_dtype
        for first in range(0, len(owners), GREEDY_AT_ONCE):
            some = slice(first, first + GREEDY_AT_ONCE)
            last = torch.from_numpy(np.stack(states[some]))
            for n in self.head.disagreements(last, torch.tensor(greedy[some]), dtype):
                group, place = owners[first + n]
                reason = GREEDY_FAULT.format(token=greedy[first + n])
                finished[group][place] = replace(finished[group][place], rejected=reason)
        return finished

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
        return read_sample(sample, self.store, self.identity, self._hidden_size, self._find_largest)

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
