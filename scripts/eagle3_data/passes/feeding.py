"""The supervisor's loop: sends every sample to an engine and restarts the engine if it dies or hangs.

Samples go to the engine continuously across batches, within the bound of what is in flight. An engine that
dies, or says nothing for `extraction.stall_timeout_s`, is ended with its whole process group and started
again, at most `extraction.engine_restarts` times. What was with it are suspects: they are tried last, each
alone, those first that were with the fewest dead engines. A sample that was with two, and alone with the
last, has failed; the others go on. Suspects stay suspects in later passes: so a run with more of them than
restarts gets further each time it is called. Where one sample takes long by itself, many suspects are first
tried in groups.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import isqrt

from eagle3_data.config import Extraction
from eagle3_data.engines.base import Done, Fatal, Ready, Work
from eagle3_data.engines.process import EngineProcess
from eagle3_data.errors import EngineError
from eagle3_data.log import say, warn
from eagle3_data.passes.flight import Flight
from eagle3_data.passes.stopping import Stop
from eagle3_data.records.failures import Failure, describe_situation
from eagle3_data.text import counted

CRASHES_TO_FAIL = 2
MANY_SUSPECTS = 64
"""More than so many are tried in groups of the square root of their number, where that is wanted: then two
more engines at most tell one sample from the others, in twice the square root of the time."""
WAIT_S = 0.5


class Feeding:
    """Feeds `requests`, a source of samples that are not in the store, to engines made by `start_engine`.

    Where `requests` gives None, all that is left is with other passes at this moment; it is asked again.
    `crashes` counts, by sample key, the engines that have died with the sample; those of this feeding are
    added. `in_flight` bounds the cost of what is in flight. `at_end` gets the engine that has nothing left
    to do, before it is closed; it is not called where the pass stops or no engine is left.
    """

    def __init__(
        self,
        start_engine: Callable[[], EngineProcess],
        settings: Extraction,
        requests: Iterator[Work | None],
        flight: Flight,
        stop: Stop,
        on_ready: Callable[[Ready], None],
        crashes: Mapping[str, int],
        in_flight: int,
        at_end: Callable[[EngineProcess], None],
        in_groups: bool = False,
    ) -> None:
        self._start_engine, self._settings, self._stop, self._on_ready = (
            start_engine,
            settings,
            stop,
            on_ready,
        )
        self._requests, self._flight, self._in_flight = requests, flight, in_flight
        self._at_end, self._in_groups = at_end, in_groups
        self._following: Work | None = None
        self._others_work = False
        """Whether samples are left that other passes extract now."""
        self._suspects: list[Work] = []
        self.crashes = Counter(crashes)
        self._engine: EngineProcess | None = None
        self._engine_gone = threading.Event()
        self._last_event_at = 0.0
        self.loads = 0
        self.ended_at = time.time()
        self.failure: Failure | None = None
        """What ended the feeding before its end, if something of the engine's did."""

    def run(self) -> None:
        self._following = self._next_unsuspected()
        try:
            while self.failure is None and not self._stop.now.is_set() and self._has_work():
                if self._engine is None and not self._has_own_work():
                    self._stop.now.wait(WAIT_S)  # the others may leave nothing to load the model for
                    self._following = self._next_unsuspected()
                    continue
                if self._engine is None and not self._load():
                    break
                self._work()
            self.ended_at = time.time()
            if self._engine is not None and self.failure is None and not self._stop.now.is_set():
                if self._stop.spares_time():
                    self._at_end(self._engine)
                self._engine.close(self._stop.now)
        finally:
            if self._engine is not None:
                self._end_engine()
            self._flight.engine_died()

    def _has_work(self) -> bool:
        more = self._has_own_work() or self._others_work
        return bool(self._flight or (more and not self._stop.is_near()))

    def _has_own_work(self) -> bool:
        return bool(self._following or self._suspects or self._flight.lost)

    # ---- one engine

    def _load(self) -> bool:
        self._engine_gone = threading.Event()
        engine = self._engine = self._start_engine()
        deadline = time.monotonic() + self._settings.load_timeout_s
        while not self._stop.now.is_set():
            event = engine.receive(0.5)
            if isinstance(event, Ready):
                self.loads += 1
                self._last_event_at = time.monotonic()
                self._on_ready(event)
                return True
            if isinstance(event, Fatal):
                self.failure = engine.explain(event.failure)
            elif time.monotonic() > deadline:
                engine.show_stacks()
                message = (
                    "the engine did not start within extraction.load_timeout_s ="
                    f" {self._settings.load_timeout_s:g} s"
                )
                self.failure = engine.explain(describe_situation(EngineError, message))
            if self.failure is not None:
                warn(f"the engine did not start\n{self.failure.render()}")
                return False
        return False

    def _work(self) -> None:
        assert self._engine is not None
        self._send()
        event = self._engine.receive(0.01 if self._flight.committing else 0.5)
        if event is not None:
            self._last_event_at = time.monotonic()
        if isinstance(event, Done):
            self._flight.arrive(event, self._engine_gone)
        elif isinstance(event, Fatal):
            self._engine_died(self._engine.explain(event.failure))
        elif (
            self._flight.with_engine
            and time.monotonic() - self._last_event_at > self._settings.stall_timeout_s
        ):
            self._engine.show_stacks()
            message = (
                "the engine hangs: it finished no sample within extraction.stall_timeout_s ="
                f" {self._settings.stall_timeout_s:g} s"
            )
            self._engine_died(self._engine.explain(describe_situation(EngineError, message)))
        self._flight.book()
        if self._flight.no_room is not None:
            self._stop.no_room(f"the disk is full ({self._flight.no_room.message})")

    def _send(self) -> None:
        """Fresh samples within the bound; after the last of them the suspects, one at a time."""
        assert self._engine is not None
        if self._stop.is_near():
            return
        if self._following is None and self._others_work:
            self._following = self._next_unsuspected()
        while self._following and (
            not self._flight or self._flight.cost + self._following.cost <= self._in_flight
        ):
            self._depart(self._following)
            self._following = self._next_unsuspected()
        if self._following is None and not self._flight:
            if self._flight.lost:
                self._depart(self._flight.lost.pop())
            elif self._suspects:
                for suspect in self._next_suspects():
                    self._suspects.remove(suspect)
                    self._depart(suspect)

    def _next_suspects(self) -> list[Work]:
        """One of those that were with the fewest dead engines, or a group of them."""
        fewest = min(self.crashes[request.key] for request in self._suspects)
        same = [request for request in self._suspects if self.crashes[request.key] == fewest]
        in_groups = self._in_groups and fewest < CRASHES_TO_FAIL and len(same) > MANY_SUSPECTS
        return same[: isqrt(len(same)) if in_groups else 1]

    def _next_unsuspected(self) -> Work | None:
        self._others_work = False
        for request in self._requests:
            if request is None:
                self._others_work = True
                return None
            if not self.crashes[request.key]:
                return request
            self._suspects.append(request)
        return None

    def _depart(self, request: Work) -> None:
        assert self._engine is not None
        if not self._flight.with_engine:
            self._last_event_at = time.monotonic()
        self._flight.depart(request)
        self._engine.send(request)

    # ---- its crash

    def _engine_died(self, failure: Failure) -> None:
        self._end_engine()
        taken = self._flight.engine_died()
        # by the signal that stops the pass: SLURM and Ctrl-C send it to every process, so no sample is to
        # blame
        if self._stop.now.is_set():
            return
        warn(f"the engine died while it had {counted(len(taken), 'sample')}\n{failure.render()}")
        for request in taken:
            self.crashes[request.key] += 1
            if (crashes := self.crashes[request.key]) >= CRASHES_TO_FAIL and len(taken) == 1:
                self._flight.blame(
                    request,
                    failure.with_note(f"{crashes} engines died while they had this sample"),
                )
            else:
                self._suspects.append(request)
        if self._has_own_work() or self._others_work:
            if self.loads > self._settings.engine_restarts:
                message = (
                    f"the engine was started {counted(self.loads, 'time')} (extraction.engine_restarts ="
                    f" {self._settings.engine_restarts}); run the same command to continue, starting with"
                    " samples with which no engine has died"
                )
                self.failure = failure.with_note(message)
                warn(f"giving up: {message}")
            else:
                say(
                    f"restarting the engine ({self.loads} of at most"
                    f" {counted(self._settings.engine_restarts, 'restart')}); the samples it had come last,"
                    f" {'a few' if self._in_groups else 'one'} at a time"
                )

    def _end_engine(self) -> None:
        assert self._engine is not None
        self._engine_gone.set()
        self._engine.kill()
        self._engine = None
