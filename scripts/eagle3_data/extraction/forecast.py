"""Walltime and host memory of a pass, for the scheduler: estimated before the first one, measured by those that ended. No torch, no vLLM.

Both are asked for generously. A walltime that is too short costs one more load of the model and nothing else, since a pass
stops cleanly before it ends; so the longest one asked for is a day, and more work takes more passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from eagle3_data.compatibility.arithmetic import DTYPE_BYTES
from eagle3_data.config import Config, Extraction
from eagle3_data.errors import ConfigError
from eagle3_data.extraction.identity import identify_extraction
from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.records import find_json
from eagle3_data.target import TargetDescription

LOAD_BYTES_PER_S = 0.25e9
"""What a checkpoint comes from a network file system with; the slowest load we know of had 0.36."""
TOKENS_PER_S = 1_000
MARGIN = 2.0
"""Of what is measured or assumed: file systems are shared, and the last samples of a pass may be the longest."""
SHORTEST_MIN, LONGEST_MIN = 60, 1_440
CANARY_S = 600
WORKER_MB, SUPERVISOR_MB = 12_000, 16_000
"""Host memory of one vLLM worker with CUDA's context and its pinned buffers, and of everything else in the job."""
COPIES = 4
"""A token's states are in the worker's buffer, in what is written, in the page cache and with the committer."""


@dataclass(frozen=True)
class Pace:
    """How fast passes go: assumed, or measured by the ledgers of the same extraction."""

    load_s: float
    tokens_per_s: float

    @classmethod
    def assumed(cls, weights_bytes: int) -> Pace:
        return cls(weights_bytes / LOAD_BYTES_PER_S, TOKENS_PER_S)

    def measured_by(self, ledgers: Iterable[dict[str, Any]]) -> Pace:
        """The slowest load and the mean rate in `ledgers`, and this pace where they do not tell."""
        ended = [ledger for ledger in ledgers if ledger["load_s"] is not None and ledger["tokens_extracted"]]
        if not ended:
            return self
        tokens, seconds = sum(ledger["tokens_extracted"] for ledger in ended), sum(ledger["extraction_s"] for ledger in ended)
        return Pace(max(ledger["load_s"] for ledger in ended), tokens / max(seconds, 1e-9))


def walltime_min(tokens: int, pace: Pace) -> int:
    """Minutes to ask for to extract `tokens` in one job."""
    seconds = CANARY_S + MARGIN * (pace.load_s + tokens / pace.tokens_per_s)
    return max(SHORTEST_MIN, min(LONGEST_MIN, ceil(seconds / 60)))


def host_memory_mb(extraction: Extraction, layers: int, hidden_size: int) -> int:
    """Host memory to ask for. The weights are not in it: they are mapped, and the kernel drops those pages when it must."""
    in_flight = COPIES * extraction.in_flight_tokens * layers * hidden_size * DTYPE_BYTES[extraction.dtype]
    return SUPERVISOR_MB + WORKER_MB * extraction.tensor_parallel + ceil(in_flight / 1e6)


def forecast_pass(config: Config, results: Path) -> tuple[int, int]:
    """Minutes and megabytes of one job of the next pass over what `results` has yet to extract. Both at their least where nothing is tokenized yet."""
    tokens = find_json(results / "tokens/batches.json")
    if tokens is None or find_json(results / "target.json") is None:
        return SHORTEST_MIN, SUPERVISOR_MB
    target = TargetDescription.read(results / "target.json")
    try:
        identity = identify_extraction(target, config.extraction)
    except ConfigError:  # impossible layer ids: check_compatibility tells, before any pass
        return SHORTEST_MIN, SUPERVISOR_MB
    paths = ExtractionPaths(results / "extraction")
    left = sum(entry["tokens"] for batch, entry in tokens["batches"].items() if not paths.record(batch).exists())
    ledgers = [ledger for path in paths.ledgers() if (ledger := find_json(path)) and ledger["extraction_id"] == identity.extraction_id]
    pace = Pace.assumed(target.weights_bytes).measured_by(ledgers)
    return (
        walltime_min(ceil(left / config.extraction.jobs), pace),
        host_memory_mb(config.extraction, len(identity.layers), target.hidden_size),
    )
