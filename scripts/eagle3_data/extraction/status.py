"""What a run has done, what failed and why, and what runs now: read from records alone, also while a run holds Snakemake's
lock. Standard library only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_data.errors import failure_headline
from eagle3_data.extraction.lease import is_live
from eagle3_data.extraction.outcomes import COMPLETE, FAILED, rejected_path
from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.records import find_json


@dataclass(frozen=True)
class BatchStatus:
    """`state` is validated, extracted, rejected, failed or pending; `detail` says why, or what comes next."""

    batch: str
    state: str
    samples: int
    tokens: int
    detail: str = ""

    @property
    def is_done(self) -> bool:
        return self.state in ("extracted", "validated")


class RunStatus:
    """The state of `results`, as of now."""

    def __init__(self, results: Path) -> None:
        self._results, self._paths = results, ExtractionPaths(results / "extraction")
        self.tokens: dict[str, Any] | None = find_json(results / "tokens/batches.json")
        ledgers = self._paths.read_ledgers()
        self.passes = len({ledger["pass"] for ledger in ledgers})
        self.written_bytes = sum(ledger["written_bytes"] for ledger in ledgers)
        self._newest = [ledger for ledger in ledgers if ledger["pass"] == ledgers[-1]["pass"]]

    def batches(self) -> list[BatchStatus]:
        entries = self.tokens["batches"] if self.tokens else {}
        return [self._batch(batch, entry) for batch, entry in sorted(entries.items())]

    def _batch(self, batch: str, entry: dict[str, Any]) -> BatchStatus:
        def status(state: str, detail: str = "") -> BatchStatus:
            return BatchStatus(batch, state, entry["samples"], entry["tokens"], detail)

        if rejected := self._rejected(batch):
            return status("rejected", f"{len(rejected)} samples are quarantined and extracted anew by the next pass")
        if gate := find_json(self._results / f"extraction/batches/{batch}.json"):
            validated = (self._results / f"validation/{batch}.json").exists()
            left_out = len(gate["left_out"])
            return status("validated" if validated else "extracted", f"without {left_out} failed samples" if left_out else "")
        for ledger in self._newest:
            outcome = ledger["batches"].get(batch)
            if outcome is None or outcome["state"] == COMPLETE:
                continue
            if outcome["state"] == FAILED:
                return status("failed", f"{len(outcome['failed'])} samples: {_cause(outcome['failed'][0]['record'])}")
            return status("pending", f"not reached: {failure_headline(ledger['failure'])}" if ledger["failure"] else "not reached")
        return status("pending")

    def _rejected(self, batch: str) -> dict[str, str]:
        """Why validation rejected which keys of a batch."""
        found = find_json(rejected_path(self._results, batch))
        return found["rejected"] if found else {}

    def causes(self) -> Counter[str]:
        """The distinct causes in the newest pass and in validation, with how many samples each cost."""
        causes: Counter[str] = Counter()
        examples: dict[str, str] = {}
        for batch in self.tokens["batches"] if self.tokens else ():
            for reason in self._rejected(batch).values():
                causes[examples.setdefault(reason.partition(":")[0], f"rejected by validation: {reason}")] += 1
        for ledger in self._newest:
            for outcome in ledger["batches"].values():
                for failed in outcome["failed"]:
                    causes[_cause(failed["record"])] += 1
                if outcome["not_reached"]:
                    causes[failure_headline(ledger["failure"]) if ledger["failure"] else "not reached"] += outcome["not_reached"]
        return causes

    def running(self) -> list[dict[str, Any]]:
        """The leases of passes that live."""
        records = [(path, find_json(path)) for path in sorted(self._paths.running.glob("*-of-*.json"))]
        return [record for path, record in records if record and is_live(path, record)]


def _cause(record: str) -> str:
    found = find_json(record)
    return failure_headline(found["failure"]) if found else f"see {record}"


def describe_running(lease: dict[str, Any]) -> str:
    """One line about a running pass, with the time it still takes at its pace so far."""
    job = f", SLURM job {lease['slurm_job_id']}" if lease.get("slurm_job_id") else ""
    line = f"pass {lease['pass']} stripe {lease['stripe']} on {lease['host']}{job}: {lease['phase']}"
    if lease["phase"] != "extracting":
        return f"{line} for {_duration(lease['updated_at'] - lease['started_at'])}"
    elapsed_s = max(lease["updated_at"] - lease["extracting_since"], 1e-9)
    done = lease["extracted"] + lease["failed"]
    line += f", {done} of {lease['to_extract']} samples, {lease['failed']} failed, {lease['tokens'] / elapsed_s:,.0f} tokens/s"
    return f"{line}, about {_duration(elapsed_s / done * (lease['to_extract'] - done))} left" if done else line


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
