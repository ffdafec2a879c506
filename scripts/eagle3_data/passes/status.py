"""What a run has done, what failed and why, and what runs now: read from records alone, also while a run
holds Snakemake's lock. Standard library only."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eagle3_data.findings import Findings, told_failures
from eagle3_data.hashing import batch_fingerprint
from eagle3_data.passes.batch_records import FailureRecord
from eagle3_data.passes.lease import SILENT_S, LeaseState, is_live
from eagle3_data.passes.ledger import (
    COMPLETE,
    FAILED,
    BatchOutcome,
    FailedSample,
    Gate,
    Ledger,
    PassFacts,
)
from eagle3_data.passes.paths import ExtractionPaths
from eagle3_data.records import find_json
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.validation.verdict import BatchVerdict


@dataclass(frozen=True)
class BatchStatus:
    """`state` is validated, extracted, rejected, failed or pending; `detail` says why, or what comes next;
    `not_proven` what no proof of its validation covers."""

    batch: str
    state: str
    samples: int
    tokens: int
    detail: str = ""
    not_proven: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return self.state in ("extracted", "validated")


@dataclass(frozen=True)
class LeaseFile:
    """A lease as it lies there. A killed pass leaves its lease behind, and the next one of its stripe removes
    it."""

    state: LeaseState
    jobs: int
    live: bool

    @classmethod
    def find_all(cls, paths: ExtractionPaths) -> list[LeaseFile]:
        states = [(path, LeaseState.find(path)) for path in sorted(paths.running.glob("*-of-*.json"))]
        return [
            cls(state, int(path.stem.partition("-of-")[2]), is_live(path, state))
            for path, state in states
            if state
        ]


@dataclass(frozen=True)
class LostPass:
    """The newest pass, where some of its `stripes` (of `jobs`, if that is known) were started and left no
    ledger."""

    number: int
    stripes: frozenset[int]
    jobs: int | None
    surely: bool
    """Whether it has ended for sure: on another machine a lease looks alive for a minute after its process
    was killed."""

    @property
    def headline(self) -> str:
        return f"pass {self.number:03d} {'ended without a ledger' if self.surely else 'has left no ledger'}"

    def told(self, logs: Path) -> str:
        guess = (
            " (killed, or out of memory)"
            if self.surely
            else ": if its job is over, it was killed or ran out of memory"
        )
        return f"{self.headline}{guess}; see {logs}/extract_pass/{self.number:03d}"

    def was_to_extract(self, batch: str) -> bool:
        return self.jobs is None or int(batch) % self.jobs in self.stripes


class RunStatus:
    """The state of `results`, as of now. What counts is what belongs to the plan: the batches as they are
    tokenized now, under one extraction.

    `extraction_id` is the configured one, as Snakemake knows it; empty where it is none (impossible layer
    ids), and then nothing counts. None is from another terminal: what the newest pass extracts is taken for
    it. `has_failed`: Snakemake asks at the end of a run that failed, so no pass of its own runs any more.
    """

    def __init__(self, results: Path, extraction_id: str | None = None, has_failed: bool = False) -> None:
        self.results, self._has_failed = results, has_failed
        self._run = RunPaths(results)
        self._paths = ExtractionPaths(self._run.extraction)
        absolute = Path(os.path.abspath(results))
        self.directory = absolute.parent.parent
        """The one Snakemake was called in: results are in results/<run> there, logs in logs/<run>."""
        self.logs = (Path() if self.directory == Path.cwd() else self.directory) / "logs" / absolute.name
        self.tokens = BatchIndex.find(self._run.batches)
        self._leases = LeaseFile.find_all(self._paths)
        numbered = self._paths.read_ledgers()
        stored = [ledger for path in self._paths.stored_ledgers() if (ledger := Ledger.find(path))]
        self._ledgers = sorted([*stored, *numbered], key=_pass_number)
        self.passes = len({ledger.number for ledger in numbered})
        self.written_bytes = sum(ledger.written_bytes for ledger in numbered)
        dead = [lease.state for lease in self._leases if not lease.live]
        known: list[PassFacts] = [*self.running(), *reversed(self._ledgers), *dead]
        newest = max(known, key=_pass_number, default=None)  # of equal numbers, the first
        newest_id = newest.extraction_id if newest else ""
        self.extraction_id: str = newest_id if extraction_id is None else extraction_id
        self.command = newest.command if newest else None
        """What Snakemake was called with when it made the newest pass. None: no pass yet, or one that was
        called by hand."""

    # ---- batches

    @cached_property
    def batches(self) -> list[BatchStatus]:
        return [self._batch(batch, entry) for batch, entry in sorted(self._entries.items())]

    @property
    def _entries(self) -> dict[str, BatchEntry]:
        return self.tokens.batches if self.tokens else {}

    def _batch(self, batch: str, entry: BatchEntry) -> BatchStatus:
        def status(state: str, detail: str = "", not_proven: tuple[str, ...] = ()) -> BatchStatus:
            return BatchStatus(batch, state, entry.samples, entry.tokens, detail, not_proven)

        if rejected := self._rejected.get(batch):
            return status(
                "rejected", f"{len(rejected)} samples are quarantined and extracted anew by the next pass"
            )
        gate = Gate.find(self._run.gate(batch))
        if gate and gate.fingerprint == self._fingerprints[batch]:
            verdict = BatchVerdict.find(self._run.verdict(batch))
            # other counts: of when more had been left out
            validated = (
                verdict is not None
                and verdict.fingerprint == gate.fingerprint
                and verdict.samples == gate.samples
            )
            left_out = len(gate.left_out)
            return status(
                "validated" if validated else "extracted",
                f"without {left_out} failed samples" if left_out else "",
                tuple(verdict.not_proven) if validated and verdict else (),
            )
        if self._lost and self._is_lost(batch):
            return status("pending", self._lost.headline)
        ledger, outcome = self._newest.get(batch, (None, None))
        if not ledger or not outcome or outcome.state == COMPLETE:
            return status("pending")
        if outcome.state == FAILED:
            return status(
                "failed",
                f"{len(outcome.failed)} samples: {self._cause(batch, ledger, outcome.failed[0])}",
            )
        return status(
            "pending",
            f"not reached: {ledger.failure.summary}" if ledger.failure else "not reached",
        )

    @cached_property
    def _fingerprints(self) -> dict[str, str | None]:
        return {
            batch: batch_fingerprint(self.extraction_id, entry.fingerprint) if self.extraction_id else None
            for batch, entry in self._entries.items()
        }

    @cached_property
    def _newest(self) -> dict[str, tuple[Ledger, BatchOutcome]]:
        """Of each batch of the plan the newest ledger that mentions it, and what became of it there."""
        mentioned = (
            (ledger, batch, outcome) for ledger in self._ledgers for batch, outcome in ledger.batches.items()
        )
        return {
            batch: (ledger, outcome)
            for ledger, batch, outcome in mentioned
            if outcome.fingerprint == self._fingerprints.get(batch, "")
        }

    @cached_property
    def _rejected(self) -> dict[str, dict[str, str]]:
        """By batch, why validation rejected which keys."""
        records = {
            path.stem: BatchVerdict.find(path) for path in self.results.glob("validation/rejected/*.json")
        }
        return {
            batch: record.rejected for batch, record in records.items() if record and batch in self._entries
        }

    @property
    def has_report(self) -> bool:
        """Whether the compatibility check found nothing that fails."""
        return self._run.report.exists()

    @property
    def has_training_set(self) -> bool:
        """Whether one is assembled, of every batch of the plan."""
        provenance = find_json(self._run.training_set / "provenance.json")
        return bool(
            provenance
            and provenance.get("extraction_id") == self.extraction_id
            and all(batch.state == "validated" for batch in self.batches)
        )

    # ---- causes

    def refusals(self) -> list[str]:
        """What the last check of compatibility failed for, if it failed: then there is no report.json."""
        report = None if self.has_report else Findings.find(self._run.failed_report)
        return told_failures(report.findings) if report else []

    @property
    def lost(self) -> LostPass | None:
        """The newest pass, if it ended without a word and was to extract what is unfinished."""
        return (
            self._lost
            if any(not status.is_done and self._is_lost(status.batch) for status in self.batches)
            else None
        )

    @cached_property
    def _lost(self) -> LostPass | None:
        """Snakemake makes a pass's log before it starts it, and its folder; the folder goes again with a job
        that failed."""
        started = {
            (int(path.parent.name), int(path.stem)): path
            for path in self.logs.glob("extract_pass/[0-9]*/[0-9]*.log")
            if path.stem.isdigit()
        }
        leases = {(_pass_number(lease.state), lease.state.stripe): lease for lease in self._leases}
        newest = max([*self._paths.pass_numbers(), *(number for number, _ in [*started, *leases])], default=0)
        stripes: dict[int, bool] = {}
        for number, stripe in {*started, *leases}:
            if number != newest or self._paths.ledger(f"{number:03d}", stripe).exists():
                continue
            lease = leases.get((number, stripe))
            if lease and (self._has_failed or not lease.live):
                stripes[stripe] = not lease.live
            elif not lease and (self._has_failed or not self._may_still_begin(started[number, stripe])):
                stripes[stripe] = True
        jobs = next((lease.jobs for (number, _), lease in leases.items() if number == newest), None)
        return LostPass(newest, frozenset(stripes), jobs, all(stripes.values())) if stripes else None

    def _may_still_begin(self, log: Path) -> bool:
        """Whether a pass without a lease has just started, or waits for another."""
        return any(lease.live for lease in self._leases) or time.time() - log.stat().st_mtime < SILENT_S

    def _is_lost(self, batch: str) -> bool:
        """Whether the lost pass was to extract the batch: what earlier passes met is then no longer what kept
        it."""
        mentioned = self._newest.get(batch)
        return bool(
            self._lost
            and self._lost.was_to_extract(batch)
            and not (mentioned and _pass_number(mentioned[0]) == self._lost.number)
        )

    def causes(self) -> Counter[str]:
        """The distinct causes in validation and in each unfinished batch's newest pass, with how many samples
        each cost."""
        causes: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for rejected in self._rejected.values():
            for reason in rejected.values():
                causes[
                    examples.setdefault(reason.partition(":")[0], f"rejected by validation: {reason}")
                ] += 1
        for batch in (
            status.batch for status in self.batches if not status.is_done and not self._is_lost(status.batch)
        ):
            if batch not in self._newest:
                continue
            ledger, outcome = self._newest[batch]
            causes.update(self._cause(batch, ledger, failed) for failed in outcome.failed)
            if outcome.not_reached:
                causes[ledger.failure.summary if ledger.failure else "not reached"] += outcome.not_reached
        return causes

    def _cause(self, batch: str, ledger: Ledger, failed: FailedSample) -> str:
        """Of a failed sample. The path in the ledger is relative to where the pass ran, so it is made
        anew."""
        path = self._paths.failure(batch, ledger.number, failed.key)
        record = FailureRecord.find(path)
        return record.failure.summary if record else f"see {path}"

    def running(self) -> list[LeaseState]:
        """The leases of passes that live."""
        return [lease.state for lease in self._leases if lease.live]


def _pass_number(record: PassFacts) -> int:
    return int(record.number)


def describe_running(lease: LeaseState) -> str:
    """One line about a running pass, with the time it still takes at its pace so far."""
    job = f", SLURM job {lease.slurm_job_id}" if lease.slurm_job_id else ""
    line = f"pass {lease.number} stripe {lease.stripe} on {lease.host}{job}: {lease.phase}"
    if lease.extracting_since is None or lease.phase != "extracting":
        return f"{line} for {_duration(lease.updated_at - lease.started_at)}"
    elapsed_s = max(lease.updated_at - lease.extracting_since, 1e-9)
    done = lease.extracted + lease.failed
    line += (
        f", {done} of {lease.to_extract} samples, {lease.failed} failed,"
        f" {lease.tokens / elapsed_s:,.0f} tokens/s"
    )
    return f"{line}, about {_duration(elapsed_s / done * (lease.to_extract - done))} left" if done else line


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
