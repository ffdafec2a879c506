"""The samples that are with the engine or being committed."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait

from eagle3_data.engines.base import Done, Rejected, Work
from eagle3_data.errors import NO_ROOM, SampleError
from eagle3_data.passes.commits import Committer, Kept, RejectionError, UnwrittenError
from eagle3_data.passes.outcomes import Outcomes
from eagle3_data.progress import Progress
from eagle3_data.records.failures import Failure, describe_exception


class Flight:
    """Requests between departure to the engine and commit. `cost` is what the in-flight bound counts: for
    states, at most `extraction.in_flight_tokens` tokens' are in the engine's memory or unfinished on the
    disk."""

    def __init__(
        self, committer: Committer, pool: ThreadPoolExecutor, outcomes: Outcomes, progress: Progress
    ) -> None:
        self._committer, self._pool, self._outcomes, self._progress = committer, pool, outcomes, progress
        self._committing: dict[Future[Kept | None], Work] = {}
        self.with_engine: dict[str, Work] = {}
        self.lost: list[Work] = []
        """Finished by an engine that died before it wrote them: to be extracted again."""
        self.cost = 0
        self.no_room: Failure | None = None
        """The failure that says that the disk is full, once there was one."""

    def __bool__(self) -> bool:
        return bool(self.with_engine or self._committing)

    def depart(self, request: Work) -> None:
        self.with_engine[request.key] = request
        self.cost += request.cost

    def arrive(self, word: Done, engine_gone: threading.Event) -> None:
        request = self.with_engine.pop(word.key)
        if isinstance(word, Rejected):
            self.fail(request, word.failure)
        else:
            self._committing[self._pool.submit(self._committer.commit, request, word, engine_gone)] = request

    @property
    def committing(self) -> bool:
        return bool(self._committing)

    def book(self) -> None:
        """Take note of commits that ended."""
        for future in [future for future in self._committing if future.done()]:
            request = self._committing.pop(future)
            error = future.exception()
            if error is None:
                self.cost -= request.cost
                kept = future.result()
                if kept is None:
                    self._outcomes.found(request.key)
                else:
                    self._outcomes.committed(request.key, kept.tokens, kept.size_bytes)
                self._progress.add(tokens=kept.tokens if kept else len(request.token_ids))
            elif isinstance(error, UnwrittenError):
                self.cost -= request.cost
                self.lost.append(request)
            else:
                self.fail(
                    request, error.failure if isinstance(error, RejectionError) else describe_exception(error)
                )

    def engine_died(self) -> list[Work]:
        """Wait for the commits that still can succeed, and give back what the dead engine was computing."""
        wait(self._committing)
        self.book()
        taken = list(self.with_engine.values())
        self.cost -= sum(request.cost for request in taken)
        self.with_engine.clear()
        return taken

    def fail(self, request: Work, failure: Failure) -> None:
        """Book a sample of this flight as failed. One that found no room on the disk has not failed: it is
        left for the next pass."""
        self.cost -= request.cost
        if failure.errno in NO_ROOM:
            self.no_room = failure
        else:
            self._book_failure(request, failure, own=failure.kind == SampleError.__name__)

    def blame(self, request: Work, failure: Failure) -> None:
        """Book a sample that is not in flight any more as failed, since engines died of it."""
        self._book_failure(request, failure, own=True)

    def _book_failure(self, request: Work, failure: Failure, own: bool) -> None:
        self._outcomes.failed(request.key, len(request.token_ids), failure, own)
        self._progress.add(failed=1)
