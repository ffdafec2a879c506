"""The samples that are with the engine or being committed."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from eagle3_data.engines.base import Extracted, Rejected, Request
from eagle3_data.errors import describe_exception
from eagle3_data.extraction.committer import Committer, RejectionError
from eagle3_data.extraction.outcomes import Outcomes
from eagle3_data.progress import Progress


class Flight:
    """Requests between departure to the engine and commit. `tokens` is what the in-flight bound counts."""

    def __init__(self, committer: Committer, pool: ThreadPoolExecutor, outcomes: Outcomes, progress: Progress) -> None:
        self._committer, self._pool, self._outcomes, self._progress = committer, pool, outcomes, progress
        self.requests: dict[str, Request] = {}
        self.committing: dict[Future[int], Request] = {}
        self.tokens = 0

    def depart(self, request: Request) -> None:
        self.requests[request.key] = request
        self.tokens += len(request.token_ids)

    def arrive(self, word: Extracted | Rejected) -> None:
        request = self.requests[word.key]
        if isinstance(word, Rejected):
            self._fail(request, word.failure)
        else:
            self.committing[self._pool.submit(self._committer.commit, request, word)] = request

    def book(self) -> None:
        """Take note of commits that ended."""
        for future in [future for future in self.committing if future.done()]:
            request = self.committing.pop(future)
            error = future.exception()
            if error is None:
                self._land(request)
                self._outcomes.committed(request.key, len(request.token_ids), future.result())
                self._progress.add(tokens=len(request.token_ids))
            else:
                self._fail(request, error.failure if isinstance(error, RejectionError) else describe_exception(error))

    def end(self, failure: dict[str, Any] | None) -> None:
        """No more words will come: wait for running commits, then fail what is still with the engine (without a failure:
        leave it unreached)."""
        wait(self.committing)
        self.book()
        for request in list(self.requests.values()):
            if failure is None:
                self._land(request)
            else:
                self._fail(request, failure)

    def _fail(self, request: Request, failure: dict[str, Any]) -> None:
        self._land(request)
        self._outcomes.failed(request.key, len(request.token_ids), failure)
        self._progress.add(failed=1)

    def _land(self, request: Request) -> None:
        del self.requests[request.key]
        self.tokens -= len(request.token_ids)
