"""The replay at the end of a pass: some of the samples that it has just stored go through the loaded engine
again, each alone, with nothing taken from a cache, and must come out as they are stored.

It shows what depends on the company a sample had: requests mixed up in a batch, rows lost at the border of a
step or in a cache. What the engine does in the same way every time, such as capturing another layer, it
repeats, and that does not show here.

One sample that comes out differently is one of a few that were looked at, so nothing that the pass has
stored counts: its batches are rejected, the samples go to quarantine, and the next pass extracts them again.
Rejecting is the first thing that happens, and it is on the disk: a pass that is killed after it leaves the
rest to the next one. Replayed states lie in the pass's own folder below `incoming/` for a moment each.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3_data.engines.base import Extracted, Fatal, Rejected, Request
from eagle3_data.engines.process import EngineProcess
from eagle3_data.errors import EngineError, SampleError, StorageError, headline, message_of
from eagle3_data.extraction.committer import Expected, open_checked, wait_for_states
from eagle3_data.log import say, warn
from eagle3_data.passes.stopping import Stop
from eagle3_data.progress import Progress
from eagle3_data.records.replay import Replay, SlotErrors
from eagle3_data.samples import Sample
from eagle3_data.store import Store
from eagle3_data.store.states import States
from eagle3_data.text import counted
from eagle3_data.validation.differences import NUMBERS, Difference, describe_difference
from eagle3_data.validation.likeness import TOLERANCES, row_errors, wrong_rows

LOOK_S = 0.2
STOPPED = "the pass was stopped, or its walltime was nearly over"


def choose(lengths: Mapping[str, int], number: int, step_tokens: int | None, seed: str) -> list[str]:
    """The keys of at most `number` samples, of `lengths` by key: the longest; the shortest that takes more
    than one step, if there is one; of the others one at random from each of as many ranges of length. The
    same `seed` gives the same choice."""
    ordered = sorted(lengths, key=lambda key: (lengths[key], key))
    if number >= len(ordered):
        return ordered
    chosen = [ordered.pop()] if number else []
    longer = [key for key in ordered if step_tokens is not None and lengths[key] > step_tokens]
    if longer and number > 2:
        chosen.append(longer[0])
        ordered.remove(longer[0])
    draw = random.Random(seed)
    left = number - len(chosen)
    strata = [ordered[n * len(ordered) // left : (n + 1) * len(ordered) // left] for n in range(left)]
    chosen += [draw.choice(stratum) for stratum in strata]
    return sorted(chosen, key=lambda key: (lengths[key], key))


class _EndError(Exception):
    """The replay cannot go on; the text says why. No sample is to blame."""


@dataclass(frozen=True)
class ReplaySettings:
    """`number`: validation.replay_samples. `incoming` is the pass's folder in the store."""

    number: int
    seed: str
    incoming: Path
    stall_timeout_s: float
    write_timeout_s: float


class Replaying:
    """The replay of one pass. `stored` gives the lengths, by key, of the samples that this pass has stored,
    `find` the samples of some keys; `on_failure` is called at once with the key and the difference of the
    first sample that came out differently."""

    def __init__(
        self,
        settings: ReplaySettings,
        store: Store,
        expected: Expected,
        stop: Stop,
        stored: Callable[[], Mapping[str, int]],
        find: Callable[[Sequence[str]], list[Sample]],
        on_failure: Callable[[str, Difference], None],
    ) -> None:
        self._settings, self._store, self._expected, self._stop = settings, store, expected, stop
        self._stored, self._find, self._on_failure = stored, find, on_failure
        self._directory = settings.incoming / "replay"
        self._errors: list[np.ndarray] = []
        self._replayed: dict[str, int] = {}
        self._step_tokens: int | None = None
        self._ended = ""
        self._elapsed_s = 0.0
        self.differences: dict[str, Difference] = {}

    def run(self, engine: EngineProcess, step_tokens: int | None) -> None:
        """Replay with an engine that has nothing else to do."""
        started = time.monotonic()
        self._step_tokens = step_tokens
        keys = choose(self._stored(), self._settings.number, step_tokens, self._settings.seed)
        if not keys:
            return
        samples = sorted(self._find(keys), key=lambda sample: len(sample.token_ids))
        say(f"replay: {counted(len(samples), 'sample')} of this pass once more, each alone")
        self._directory.mkdir()
        try:
            with Progress("replay", "samples", len(samples)) as progress:
                for sample in samples:
                    self._replay(engine, sample)
                    progress.add(tokens=len(sample.token_ids))
        except _EndError as end:
            self._ended = str(end)
            warn(f"replay: ended early: {end}")
        finally:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._elapsed_s = time.monotonic() - started

    def result(self, why_not: str) -> Replay | None:
        """What was found, None where the pass has stored nothing. `why_not` says what kept the replay from
        running, if it did not run."""
        if not self._stored():
            return None
        unfinished = self._ended
        if not self._replayed and not unfinished:
            off = "" if self._settings.number else "validation.replay_samples is 0"
            unfinished = off or why_not or "no engine was left at the end of the pass"
        return Replay(
            samples=list(self._replayed),
            rows=sum(self._replayed.values()),
            slots=self._slots(),
            failed={key: str(difference) for key, difference in self.differences.items()},
            longest_step=self._step_tokens,
            crossing=sum(length > (self._step_tokens or length) for length in self._replayed.values()),
            unfinished=unfinished,
            elapsed_s=self._elapsed_s,
        )

    def _slots(self) -> list[SlotErrors]:
        if not self._errors:
            return []
        errors = np.concatenate(self._errors).astype(np.float64)
        figures = np.quantile(errors, [0.5, 0.99, 1.0], axis=0)
        return [
            SlotErrors(layer, *(float(figure) for figure in figures[:, slot]))
            for slot, layer in enumerate(self._expected.layers)
        ]

    def _replay(self, engine: EngineProcess, sample: Sample) -> None:
        path = self._directory / f"{sample.key}.safetensors"
        request = Request(sample.key, sample.token_ids, str(path.resolve()), fresh=True)
        self._ask(engine, request)
        try:
            wait_for_states(path, self._settings.write_timeout_s, self._stop.now)
            stored = open_checked(self._store.states_path(sample.key), request, self._expected)
        except (SampleError, EngineError, StorageError, OSError) as error:
            raise _EndError(f"sample {sample.key}: {headline(error)}") from error
        self._replayed[sample.key] = len(sample.token_ids)
        if (found := self._compare(stored, path, request)) is not None:
            warn(f"replay: sample {sample.sample_id} ({sample.key}) comes out differently alone: {found}")
            if not self.differences:
                self._on_failure(sample.key, found)
            self.differences[sample.key] = found
        path.unlink()

    def _compare(self, stored: States, path: Path, request: Request) -> Difference | None:
        try:
            again = open_checked(path, request, self._expected)
        except SampleError as error:
            return Difference(message_of(error), *NUMBERS)
        tolerance = TOLERANCES[self._expected.dtype]
        errors = row_errors(stored, again)
        self._errors.append(errors)
        wrong = np.stack([wrong_rows(slot, tolerance) for slot in errors.T], axis=1)
        if not wrong.any():
            return None
        return describe_difference(stored, again, errors, wrong, self._expected.layers, tolerance)

    def _ask(self, engine: EngineProcess, request: Request) -> None:
        """Have the engine compute a sample. Raises _EndError where it does not."""
        if not self._stop.spares_time():
            raise _EndError(STOPPED)
        engine.send(request)
        deadline = time.monotonic() + self._settings.stall_timeout_s
        while time.monotonic() < deadline:
            event = engine.receive(LOOK_S)
            if isinstance(event, Extracted) and event.states_path == request.states_path:
                return
            if isinstance(event, Extracted):
                raise _EndError(f"asked for {request.states_path}, the engine wrote {event.states_path}")
            if isinstance(event, Rejected):
                raise _EndError(f"the engine refused sample {request.key}: {event.failure.summary}")
            if isinstance(event, Fatal):
                raise _EndError(f"the engine died: {engine.explain(event.failure).summary}")
            if not self._stop.spares_time():
                raise _EndError(STOPPED)
        raise _EndError(f"the engine hangs: no answer within {self._settings.stall_timeout_s:g} s")


def describe(replay: Replay) -> str:
    """One line for people."""
    if not replay.samples:
        return f"replay: none: {replay.unfinished}"
    worst = max(replay.slots, key=lambda slot: slot.p99, default=SlotErrors(0, 0, 0, 0))
    errors = f"median {worst.median:.2%}, p99 {worst.p99:.2%}, max {worst.max:.2%} (layer {worst.layer})"
    line = (
        f"replay: {counted(len(replay.samples), 'sample')} alone, {counted(replay.rows, 'token')},"
        f" {replay.crossing} longer than a step, {len(replay.failed) or 'none'} came out differently;"
        f" relative error: {errors}"
    )
    return f"{line}; ended early: {replay.unfinished}" if replay.unfinished else line
