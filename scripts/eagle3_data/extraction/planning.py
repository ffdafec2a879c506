"""What is finished and what the next pass must do, as Snakemake sees it when it reads the workflow. No torch, no vLLM.

A pass writes a new numbered ledger; a ledger that exists is sealed. A finished batch depends on the pass that made it,
an unfinished one on the next pass. So every run plans at most one new pass (in `extraction.jobs` stripes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle3_data.config import Config, Extraction
from eagle3_data.errors import ConfigError
from eagle3_data.extraction.identity import ExtractionIdentity, identify_extraction
from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.records import find_json, read_json
from eagle3_data.store import Store
from eagle3_data.target import TargetDescription


@dataclass(frozen=True)
class Made:
    """The ledger a batch's gate depends on, and whether it exists already (then the gate takes it as `ancient`)."""

    ledger: str
    exists: bool


class Plan:
    """One parse's view. `next_number` and `unsealed` are fixed here, before any job runs."""

    def __init__(self, config: Config, results: Path) -> None:
        self._config = config
        self._results = results
        self._paths = ExtractionPaths(results / "extraction")
        self._view: tuple[Any, TokensView] | None = None
        self._records: dict[str, dict[str, Any]] = {}
        for path in self._paths.root.glob("records/*.json"):
            if record := find_json(path):
                self._records[path.stem] = record
        numbers = self._paths.pass_numbers() + [int(record["pass"]) for record in self._records.values()]
        self.next_number = f"{1 + max(numbers, default=0):03d}"
        sealed = "|".join(re.escape(f"{path.parent.name}/{path.stem}") for path in self._paths.ledgers())
        self.unsealed = (rf"(?!(?:{sealed})\.json)" if sealed else "") + r"\d\d\d+/\d+"
        """Pattern of the `<number>/<stripe>` of `<number>/<stripe>.json` that a rule may still make."""

    def view(self) -> TokensView:
        """The batches as they are now: tokenization may rewrite them while Snakemake runs."""
        files = (self._results / "tokens/batches.json", self._results / "target.json")
        signature = tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in files)
        if self._view is None or self._view[0] != signature:
            self._view = (signature, TokensView(self._config.extraction, *files))
        return self._view[1]

    def made_by(self, batch: str) -> Made:
        """The ledger of the pass that finished `batch`, or that of the next pass."""
        view, record = self.view(), self._records.get(batch)
        if record and not (self._results / f"validation/rejected/{batch}.json").exists() and view.is_stored(batch, record):
            ledger = self._paths.ledger(record["pass"], record["stripe"])
            if ledger.exists():
                return Made(str(ledger), True)
        return Made(str(self._paths.ledger(self.next_number, view.stripe(batch))), False)


class TokensView:
    """Batches, their fingerprints, and the keys in the store."""

    def __init__(self, extraction: Extraction, batches_json: Path, target_json: Path) -> None:
        self.batches: dict[str, dict[str, Any]] = read_json(batches_json)["batches"]
        self._jobs = extraction.jobs
        try:
            self._identity: ExtractionIdentity | None = identify_extraction(TargetDescription.read(target_json), extraction)
        except ConfigError:  # impossible layer ids: check_compatibility tells, before any pass
            self._identity = None
        else:
            self._store = Store(extraction.store, self._identity.extraction_id)

    def stripe(self, batch: str) -> int:
        return stripe_of(batch, self._jobs)

    def fingerprint(self, batch: str) -> str:
        return self._identity.batch_fingerprint(self.batches[batch]["fingerprint"]) if self._identity else ""

    def is_stored(self, batch: str, record: dict[str, Any]) -> bool:
        """Whether `record` is of this very batch and all its samples are in the store."""
        return record["fingerprint"] == self.fingerprint(batch) and all(sample["key"] in self._keys for sample in record["samples"])

    @cached_property
    def _keys(self) -> set[str]:
        return self._store.keys()


def stripe_of(batch: str, jobs: int) -> int:
    """The stripe a batch belongs to when `jobs` jobs share a pass."""
    return int(batch) % jobs
