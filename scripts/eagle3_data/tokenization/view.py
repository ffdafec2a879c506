"""A page to look at before paying for GPUs: some samples, the trained tokens highlighted."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from eagle3_data.hashing import hash_bytes
from eagle3_data.pages import render_page
from eagle3_data.tokenization.encoder import Backend
from eagle3_data.tokenization.placement import PlacedSample

SHOWN_SAMPLES = 12
SHOWN_TOKENS = 3000


class SampleView:
    """Keeps the few samples with the smallest hashes of their ids: the same choice in every run, in constant
    memory."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, str, PlacedSample]] = []
        self._total = 0

    def offer(self, placed: PlacedSample) -> None:
        self._total += 1
        item = (-int(hash_bytes(placed.sample_id.encode()), 16), placed.sample_id, placed)
        if len(self._kept) < SHOWN_SAMPLES:
            heapq.heappush(self._kept, item)
        else:
            heapq.heappushpop(self._kept, item)

    def render(self, backend: Backend) -> str:
        """The page. Conversations are text of strangers, so everything is escaped."""
        samples = [
            {
                "name": placed.sample_id,
                "tokens": placed.sample.tokens,
                "trained": placed.sample.trained_tokens,
                "split": placed.split,
                "truncated": placed.sample.truncated,
                "longer": placed.sample.tokens > SHOWN_TOKENS,
                "pieces": list(_pieces(placed, backend)),
            }
            for _, _, placed in sorted(self._kept, reverse=True)
        ]
        return render_page(
            "samples.html.jinja", title="Tokenized samples", samples=samples, total=self._total
        )


def _pieces(placed: PlacedSample, backend: Backend) -> Iterator[tuple[bool, str]]:
    """Runs of context as one piece, trained tokens one by one; tokens that only together make a character
    stay together."""
    ids = np.frombuffer(placed.sample.ids, "<i4")[:SHOWN_TOKENS].tolist()
    for trained, run in groupby(zip(placed.sample.mask, ids, strict=False), key=lambda pair: pair[0]):
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
