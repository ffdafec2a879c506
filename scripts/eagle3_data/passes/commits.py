"""The protocol for committing an engine's results."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

from eagle3_data.errors import EngineError, SampleError
from eagle3_data.records.failures import Failure


class RejectionError(SampleError):
    """A sample whose failure is already described, by the process in which it happened."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class UnwrittenError(EngineError):
    """The engine died after it had computed a sample and before it had written it: nothing is wrong with the
    sample."""


@dataclass(frozen=True)
class Kept:
    """What was committed: how many tokens were computed, and the size of their file."""

    tokens: int
    size_bytes: int


class Committer(Protocol):
    """Keeps the results of one pass. `commit` runs in threads, while the engine computes."""

    def commit(self, request: Any, result: Any, engine_gone: threading.Event) -> Kept | None:
        """Keep the `result` (a Done that is no Rejected) of one `request` (a Work); None if another run was
        first. Raises SampleError, EngineError, RejectionError or UnwrittenError; then nothing of it is kept.
        `engine_gone` is set once the engine is dead: what it has not written by then will not come."""
