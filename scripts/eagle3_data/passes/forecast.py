"""Walltime and host memory of one job of a pass, for the scheduler: assumed before the first pass, measured
by those that ended. No torch, no vLLM.

Both are asked for generously. A walltime that is too short costs one more load of the model and nothing else,
since a pass stops cleanly before it ends, and a load that it cut short is known to the next forecast. So the
longest one asked for is a day of work, and more work takes more passes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from eagle3_data.compatibility.run.arithmetic import DTYPE_BYTES
from eagle3_data.config import Extraction
from eagle3_data.passes.ledger import Ledger

LOAD_BYTES_PER_S = 0.25e9
"""What a checkpoint comes from a network file system with; the slowest load we know of had 0.36."""
TOKENS_PER_S = 1_000
MARGIN = 2.0
"""Of what is measured or assumed: file systems are shared, and the last samples of a pass may be the
longest."""
SHORTEST_MIN, LONGEST_MIN = 60, 1_440
CANARY_S = 900
"""Its own deadline."""
WORKER_MB, SUPERVISOR_MB = 12_000, 16_000
"""Host memory of one vLLM worker with CUDA's context and its pinned buffers, and of everything else in the
job."""
COPIES = 4
"""A token's states are in the worker's buffer, in what is written, in the page cache and with the
committer."""


@dataclass(frozen=True)
class Pace:
    """How long the model takes to load, and how many tokens a second then come."""

    load_s: float
    tokens_per_s: float

    @classmethod
    def assumed(cls, weights_bytes: int) -> Pace:
        return cls(weights_bytes / LOAD_BYTES_PER_S, TOKENS_PER_S)

    def measured_by(self, ledgers: Iterable[Ledger]) -> Pace:
        """The slowest load and the mean rate in `ledgers`, and this pace where they do not tell. A pass that
        failed before its model was loaded says how long a load takes at least; waiting for another pass is no
        part of it."""
        known = list(ledgers)
        loads = [ledger.load_s for ledger in known if ledger.load_s is not None]
        cut_short = [
            ledger.elapsed_s - ledger.lease_wait_s
            for ledger in known
            if ledger.load_s is None and ledger.failure
        ]
        tokens = sum(ledger.tokens_extracted for ledger in known)
        seconds = sum(ledger.extraction_s for ledger in known)
        return Pace(
            max([*(loads or [self.load_s]), *cut_short]),
            tokens / max(seconds, 1e-9) if tokens else self.tokens_per_s,
        )


def walltime_min(tokens: int, pace: Pace, stop_before_end_s: float) -> int:
    """Minutes to ask for to extract `tokens` in one job that stops so long before the walltime ends."""
    work_s = CANARY_S + MARGIN * (pace.load_s + tokens / pace.tokens_per_s)
    return max(SHORTEST_MIN, min(LONGEST_MIN, ceil(work_s / 60))) + ceil(stop_before_end_s / 60)


def host_memory_mb(extraction: Extraction, layers: int, hidden_size: int, weights_bytes: int) -> int:
    """Host memory to ask for. vLLM's weights are not in it: they are mapped on their way to the GPUs, and the
    kernel drops those pages when it must. Those that vLLM keeps on the host are, and those of an engine that
    loads all of them there first.
    """
    in_flight = (
        COPIES * extraction.in_flight_tokens * layers * hidden_size * DTYPE_BYTES[extraction.stored_dtype]
    )
    offload_gib = extraction.engine_arguments.get("cpu_offload_gb", 0)
    offloaded = (
        offload_gib * 2**30 * extraction.tensor_parallel if isinstance(offload_gib, int | float) else 0
    )
    held = (
        offloaded
        if "vllm" in extraction.engine
        else weights_bytes * DTYPE_BYTES[extraction.dtype] / DTYPE_BYTES["bfloat16"]
    )
    return SUPERVISOR_MB + WORKER_MB * extraction.tensor_parallel + ceil((in_flight + held) / 1e6)
