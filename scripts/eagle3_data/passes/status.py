"""What a run has done, what failed and why, and what runs now: read from records alone, also while a run
holds Snakemake's lock. Standard library only."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eagle3_data.findings import Findings, describe_failures
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
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.proofs import RunProofs, proofs_of_run
from eagle3_data.records import JsonObject, find_json
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.text import counted
from eagle3_data.validation.reference_verdict import Reference
from eagle3_data.validation.verdict import BatchVerdict


@dataclass(frozen=True)
class BatchStatus:
    """`state` is validated, extracted, rejected, failed or pending; `detail` says why, or what happens next;
    `verdict` is that of a validated batch."""

    batch: str
    state: str
    samples: int
    tokens: int
    detail: str = ""
    verdict: BatchVerdict | None = None

    @property
    def is_done(self) -> bool:
        return self.state in ("extracted", "validated")


@dataclass(frozen=True)
class LeaseFile:
    """A lease file, of a running pass or left by a killed one (the next pass of that stripe removes it)."""

    state: LeaseState
    jobs: int
    live: bool

    @classmethod
    def find_all(cls, paths: PassPaths) -> list[LeaseFile]:
        states = [(path, LeaseState.find(path)) for path in sorted(paths.running.glob("*-of-*.json"))]
        return [
            cls(state, int(path.stem.partition("-of-")[2]), is_live(path, state))
            for path, state in states
            if state
        ]


@dataclass(frozen=True)
class LostPass:
    """The newest pass, if some of its `stripes` (of `jobs`, if known) were started but wrote no ledger."""

    number: int
    stripes: frozenset[int]
    jobs: int | None
    rule: str
    surely: bool
    """Whether it has certainly ended. On another machine, a lease looks alive for a minute after its process
    was killed."""

    @property
    def headline(self) -> str:
        return f"pass {self.number:03d} {'ended without a ledger' if self.surely else 'has left no ledger'}"

    def describe(self, logs: Path) -> str:
        guess = (
            " (killed, probably out of memory)"
            if self.surely
            else "; if its job has ended, it was killed, probably out of memory"
        )
        return f"{self.headline}{guess}; see {logs}/{self.rule}/{self.number:03d}"

    def was_to_extract(self, batch: str) -> bool:
        return self.jobs is None or int(batch) % self.jobs in self.stripes


class RunStatus:
    """The current state of `results`. Only the batches as tokenized now, under one extraction, count.

    `extraction_id` is the configured one, as Snakemake knows it; if empty (invalid layer ids), nothing
    counts. None means that a user asks from another terminal: then it is that of the newest pass.
    `has_failed`: Snakemake asks at the end of a failed run, so none of its passes runs any more.
    """

    rule, check = "extract_pass", "check_compatibility"
    """What runs the passes, and what allows them."""

    def __init__(self, results: Path, extraction_id: str | None = None, has_failed: bool = False) -> None:
        self.results, self._has_failed = results, has_failed
        self._run = RunPaths(results)
        self._paths, index = self._places()
        absolute = Path(os.path.abspath(results))
        self.directory = absolute.parent.parent
        """Where Snakemake was called: results are in results/<run> there, logs in logs/<run>."""
        self.logs = (Path() if self.directory == Path.cwd() else self.directory) / "logs" / absolute.name
        self.tokens = BatchIndex.find(index)
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
        """The Snakemake command of the newest pass. None if there is no pass yet, or it was called by
        hand."""

    def _places(self) -> tuple[PassPaths, Path]:
        """The files of the passes, and the index of their batches."""
        return PassPaths(self._run.extraction), self._run.batches

    def _gate(self, batch: str) -> Path:
        return self._run.gate(batch)

    # ---- batches

    @cached_property
    def batches(self) -> list[BatchStatus]:
        return [self._batch(batch, entry) for batch, entry in sorted(self._entries.items())]

    @property
    def proofs(self) -> RunProofs:
        """Of the batches that are validated."""
        verdicts = [batch.verdict for batch in self.batches if batch.verdict]
        return proofs_of_run(self._run, self.extraction_id, verdicts)

    @property
    def _entries(self) -> dict[str, BatchEntry]:
        return self.tokens.batches if self.tokens else {}

    def _batch(self, batch: str, entry: BatchEntry) -> BatchStatus:
        def status(state: str, detail: str = "", verdict: BatchVerdict | None = None) -> BatchStatus:
            return BatchStatus(batch, state, entry.samples, entry.tokens, detail, verdict)

        if rejected := self._rejected.get(batch):
            return status(
                "rejected", f"{counted(len(rejected), 'sample')} rejected; the next pass extracts them again"
            )
        gate = Gate.find(self._gate(batch))
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
                f"without {counted(left_out, 'failed sample')}" if left_out else "",
                verdict if validated else None,
            )
        if self._lost and self._is_lost(batch):
            return status("pending", self._lost.headline)
        ledger, outcome = self._newest.get(batch, (None, None))
        if not ledger or not outcome or outcome.state == COMPLETE:
            return status("pending")
        if outcome.state == FAILED:
            return status(
                "failed",
                f"{counted(len(outcome.failed), 'sample')}: {self._cause(batch, ledger, outcome.failed[0])}",
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
        """By current batch, the newest ledger that mentions it, with its outcome there."""
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
        """By batch, the rejected keys with the reasons."""
        records = {
            path.stem: BatchVerdict.find(path) for path in self.results.glob("validation/rejected/*.json")
        }
        return {
            batch: record.rejected for batch, record in records.items() if record and batch in self._entries
        }

    @property
    def has_report(self) -> bool:
        """Whether the compatibility check passed."""
        return self._run.report.exists()

    @property
    def has_training_set(self) -> bool:
        """Whether it is assembled from every current batch."""
        return bool(
            self._set_facts.get("extraction_id") == self.extraction_id
            and all(batch.state == "validated" for batch in self.batches)
        )

    @cached_property
    def _set_facts(self) -> JsonObject:
        return find_json(self._run.training_set / "provenance.json") or {}

    @property
    def training_commands(self) -> dict[str, str]:
        """The command that trains on the set, by its format; none of a set of an earlier version."""
        formats = self._set_facts.get("formats")
        found = sorted(formats.items()) if isinstance(formats, dict) else ()
        return {name: use["command"] for name, use in found if isinstance(use, dict) and "command" in use}

    @property
    def draft_vocabulary(self) -> str:
        """Its size and what it covers, in words; empty of a set of an earlier version."""
        draft = self._set_facts.get("draft_vocabulary")
        if not isinstance(draft, dict) or not {"size", "coverage", "recommended", "full"} <= draft.keys():
            return ""
        whole = (
            "all of the target's tokens" if draft["full"] else f"{draft['coverage']:.2%} of trained tokens"
        )
        return f"{draft['size']:,} tokens, {whole}" + (", as recommended" if draft["recommended"] else "")

    # ---- causes

    def refusals(self) -> list[str]:
        """Why the last compatibility check failed, if it did (then there is no report.json)."""
        report = None if self.has_report else Findings.find(self._run.failed_report)
        return describe_failures(report.findings) if report else []

    def wrong_states(self) -> list[str]:
        """What the reference found wrong, if it did (then there is no reference.json)."""
        failed = None if self._run.reference.exists() else Reference.find(self._run.failed_reference)
        if failed is None or failed.extraction_id != self.extraction_id:
            return []
        return [fault for engine in failed.engines for fault in engine.faults]

    @property
    def lost(self) -> LostPass | None:
        """The newest pass, if it ended without a ledger and should have extracted an unfinished batch."""
        return (
            self._lost
            if any(not status.is_done and self._is_lost(status.batch) for status in self.batches)
            else None
        )

    @cached_property
    def _lost(self) -> LostPass | None:
        """Snakemake creates the log of a pass before it starts the job. (It also creates the ledger's folder,
        but removes that when the job fails.)"""
        started = {
            (int(path.parent.name), int(path.stem)): path
            for path in self.logs.glob(f"{self.rule}/[0-9]*/[0-9]*.log")
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
        return (
            LostPass(newest, frozenset(stripes), jobs, self.rule, all(stripes.values())) if stripes else None
        )

    def _may_still_begin(self, log: Path) -> bool:
        """Whether a pass without a lease has just started, or is waiting for another."""
        return any(lease.live for lease in self._leases) or time.time() - log.stat().st_mtime < SILENT_S

    def _is_lost(self, batch: str) -> bool:
        """Whether the lost pass should have extracted the batch: then the failures of earlier passes no
        longer explain why it is unfinished."""
        mentioned = self._newest.get(batch)
        return bool(
            self._lost
            and self._lost.was_to_extract(batch)
            and not (mentioned and _pass_number(mentioned[0]) == self._lost.number)
        )

    def causes(self) -> Counter[str]:
        """The distinct causes, from validation and from the newest pass of each unfinished batch, with the
        number of samples affected."""
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
        """Why a sample failed. The path in the ledger is relative to where the pass ran, so it is not
        used."""
        path = self._paths.failure(batch, ledger.number, failed.key)
        record = FailureRecord.find(path)
        return record.failure.summary if record else f"see {path}"

    def running(self) -> list[LeaseState]:
        """The leases of running passes."""
        return [lease.state for lease in self._leases if lease.live]


def _pass_number(record: PassFacts) -> int:
    return int(record.number)


def describe_running(lease: LeaseState) -> str:
    """One line about a running pass, with an estimate of the time left."""
    job = f", SLURM job {lease.slurm_job_id}" if lease.slurm_job_id else ""
    line = f"pass {lease.number} stripe {lease.stripe} on {lease.host}{job}: {lease.phase}"
    if lease.extracting_since is None or lease.phase not in ("extracting", "generating"):
        return f"{line} for {_duration(lease.updated_at - lease.started_at)}"
    elapsed_s = max(lease.updated_at - lease.extracting_since, 1e-9)
    done = lease.extracted + lease.failed
    unit = "conversation" if lease.phase == "generating" else "sample"
    line += (
        f", {done:,} of {counted(lease.to_extract, unit)}, {lease.failed:,} failed,"
        f" {lease.tokens / elapsed_s:,.0f} tokens/s"
    )
    return f"{line}, about {_duration(elapsed_s / done * (lease.to_extract - done))} left" if done else line


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
