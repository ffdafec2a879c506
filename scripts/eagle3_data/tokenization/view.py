"""A page to look at before paying for GPUs: some samples, the trained tokens highlighted."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import groupby

import numpy as np
from jinja2 import Environment

from eagle3_data.hashing import hash_bytes
from eagle3_data.tokenization.encoder import Backend
from eagle3_data.tokenization.placement import PlacedSample

SHOWN_SAMPLES = 12
SHOWN_TOKENS = 3000

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Tokenized samples</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f4; padding: .8rem; border-radius: 6px; color: #666 }
mark { background: #bfe8c5; color: #06340f } mark:nth-of-type(even) { background: #a5dcae }
h2 { font-size: 1rem; margin-bottom: .2rem } p { margin: .2rem 0 }
</style></head><body>
<h1>Tokenized samples</h1>
<p>{{ shown }} of {{ total }} samples, chosen by a hash. <mark>Green</mark> tokens are trained, one shade a token; grey ones are context only.</p>
{% for sample in samples %}
<h2>{{ sample.name }}</h2>
<p>{{ sample.tokens }} tokens, {{ sample.trained }} trained{{ ", " + sample.split }}{{ ", cut at the length limit" if sample.truncated }}</p>
<pre>{% for trained, text in sample.pieces %}{% if trained %}<mark>{{ text }}</mark>{% else %}{{ text }}{% endif %}{% endfor %}{{ " …" if sample.longer }}</pre>
{% endfor %}
</body></html>
"""


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
        return (
            Environment(autoescape=True)
            .from_string(PAGE)
            .render(samples=samples, shown=len(samples), total=self._total)
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
