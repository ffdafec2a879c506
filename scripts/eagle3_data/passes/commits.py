"""The protocol for committing an engine's results."""

from __future__ import annotations

import threading
from typing import Protocol

from eagle3_data.engines.base import Extracted, Request
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


class Committer(Protocol):
    """Keeps the results of one pass. `commit` runs in threads, while the engine computes."""

    def commit(self, request: Request, extracted: Extracted, engine_gone: threading.Event) -> int | None:
        """Keep the result of one request; returns its size in bytes, None if another run was first. Raises
        SampleError, EngineError, RejectionError or UnwrittenError; then nothing of it is kept. `engine_gone`
        is set once the engine is dead: what it has not written by then will not come."""
