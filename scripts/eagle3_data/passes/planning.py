"""What is finished and what the next pass must do, computed when Snakemake reads the workflow. No torch,
no vLLM.

A pass writes a new numbered ledger; a ledger that exists is sealed. A finished batch depends on the pass that
made it, an unfinished one on the next pass. So every run plans at most one new pass (in `extraction.jobs`
stripes). A batch that was never finished here, but whose samples are all in the store (another run, other
batch sizes), depends on the ledger of a local rule instead: for it no GPU is asked for.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from pathlib import Path
from typing import Any, Protocol

from eagle3_data.config import Config, Extraction
from eagle3_data.errors import ConfigError, Eagle3DataError, InputError
from eagle3_data.findings import Findings
from eagle3_data.identity import ExtractionIdentity, identify_extraction
from eagle3_data.passes.batch_records import BatchRecord
from eagle3_data.passes.forecast import (
    MARGIN,
    SHORTEST_MIN,
    SUPERVISOR_MB,
    Pace,
    host_memory_mb,
    walltime_min,
)
from eagle3_data.passes.ledger import Gate, Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records import Record
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import check_unchanged
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store, check_root
from eagle3_data.target import TargetDescription
from eagle3_data.validation.reference_cost import (
    LONGEST_ROWS,
    LONGEST_S,
    Forecast,
    Size,
    forecast,
    rough_size,
)
from eagle3_data.validation.reference_verdict import Reference
from eagle3_data.validation.verdict import BatchVerdict, ValidationLedger


@dataclass(frozen=True)
class Made:
    """The ledger a batch's gate depends on, and whether it exists already (then the gate takes it as
    `ancient`)."""

    ledger: str
    exists: bool


class PassPlan(ABC):
    """One parse's view of one kind of pass. `next_number` and `unsealed` are fixed here, before any job
    runs."""

    def __init__(self, run: RunPaths, paths: PassPaths) -> None:
        self._run, self._paths = run, paths
        self._view: tuple[Any, BatchesView] | None = None
        self._records: dict[str, BatchRecord] = {}
        self._damaged: list[Path] = []
        for path in sorted(self._paths.root.glob("records/*.json")):
            try:
                self._records[path.stem] = BatchRecord.read(path)
            except InputError:
                self._damaged.append(path)
        numbers = self._paths.pass_numbers() + [int(record.number) for record in self._records.values()]
        self.next_number = f"{1 + max(numbers, default=0):03d}"
        self.unsealed = (
            _none_of(f"{path.parent.name}/{path.stem}" for path in self._paths.ledgers()) + r"\d\d\d+/\d+"
        )
        """Pattern of the `<number>/<stripe>` of `<number>/<stripe>.json` that a rule may still make."""
        self.unsealed_number = (
            _none_of(f"{path.parent.name}/stored" for path in self._paths.stored_ledgers()) + r"\d\d\d+"
        )
        """Pattern of the `<number>` of `<number>/stored.json` that a rule may still make."""

    @abstractmethod
    def _files(self) -> tuple[Path, Path]:
        """The record of the batches and that of the target."""

    @abstractmethod
    def _look(self, batches_json: Path, target_json: Path) -> BatchesView: ...

    def view(self) -> BatchesView:
        """The batches as they are now: what makes them may rewrite them while Snakemake runs."""
        files = self._files()
        try:
            signature = tuple((path.stat().st_mtime_ns, path.stat().st_size) for path in files)
        except OSError as error:
            raise InputError(f"{error.filename} is missing; run the same command again") from error
        if self._view is None or self._view[0] != signature:
            self._view = (signature, self._look(*files))
        return self._view[1]

    def batches(self) -> list[str]:
        """All batches, at least one. Raises InputError."""
        return sorted(self.view().batches)

    def fingerprint(self, batch: str) -> str:
        return self.view().fingerprint(batch)

    def made_by(self, batch: str) -> Made:
        """The ledger of the pass that finished `batch`, or else the one that will mention it."""
        record = self._records.get(batch)
        if record and self.view().is_stored(batch, record):
            ledger = self._paths.ledger(record.number, record.stripe)
            if ledger.exists():
                return Made(str(ledger), True)
        return self._next_pass(batch)

    def damaged_records(self) -> list[Path]:
        """Records that exist and are not whole: cut short, emptied, or something else. Snakemake looks only
        at whether they exist; once they are gone, it makes them again."""
        return self._damaged + [
            path for pattern, kind in self._kinds() for path in self._found(pattern) if kind.is_damaged(path)
        ]

    @abstractmethod
    def _kinds(self) -> tuple[tuple[Path, type[Record]], ...]:
        """The records that are looked at."""

    def _found(self, pattern: Path) -> list[Path]:
        """What matches, dead links, too: `glob` leaves out those that a pattern without wildcards names."""
        if os.path.lexists(pattern):
            return [pattern]
        return sorted(self._run.results.glob(str(pattern.relative_to(self._run.results))))

    def pass_minutes(self, stripe: int) -> int:
        """Walltime to ask for in one job of the next pass: for all the tokens of the batches that wait for
        it."""
        view, ledger = self.view(), str(self._paths.ledger(self.next_number, stripe))
        tokens = sum(
            entry.tokens for batch, entry in view.batches.items() if self.made_by(batch).ledger == ledger
        )
        return view.pass_minutes(tokens, self._paths.read_ledgers())

    def _next_pass(self, batch: str) -> Made:
        return Made(str(self._paths.ledger(self.next_number, self.view().stripe(batch))), False)


class BatchesView(ABC):
    """Batches, their fingerprints, and the keys in the store."""

    def __init__(self, extraction: Extraction, batches_json: Path, target_json: Path) -> None:
        index = BatchIndex.read(batches_json)
        self.batches = index.batches
        if not self.batches:
            raise InputError(
                f"{batches_json} names no batches; delete it and run the same command again to make it again"
            )
        check_unchanged(batches_json, index.files)
        self._extraction, self._target = extraction, TargetDescription.read(target_json)

    @property
    @abstractmethod
    def identity(self) -> Identity | None:
        """Of what the passes make; None if that is not known."""

    @property
    @abstractmethod
    def _keys(self) -> set[str]: ...

    @abstractmethod
    def pass_minutes(self, tokens: int, ledgers: Iterable[Ledger]) -> int:
        """Of one job for batches of `tokens`, at the pace of those `ledgers` that are of the same kind."""

    def stripe(self, batch: str) -> int:
        return stripe_of(batch, self._extraction.jobs)

    def entry(self, batch: str) -> BatchEntry:
        if batch not in self.batches:
            raise InputError(
                f"there is no batch {batch}; the batches are {min(self.batches)} to {max(self.batches)}"
            )
        return self.batches[batch]

    def fingerprint(self, batch: str) -> str:
        return self.identity.batch_fingerprint(self.entry(batch).fingerprint) if self.identity else ""

    def is_stored(self, batch: str, record: BatchRecord) -> bool:
        """Whether `record` is of this very batch, all its samples are in the store, and no more were left out
        than may be."""
        left_out, kept = record.left_out, record.samples
        if record.fingerprint != self.fingerprint(batch) or len(
            left_out
        ) > self._extraction.max_failed_fraction * (len(left_out) + len(kept)):
            return False
        return all(sample.key in self._keys for sample in kept)


class Identity(Protocol):
    def batch_fingerprint(self, samples: str, /) -> str: ...


class Plan(PassPlan):
    """What is extracted, and what the next pass must extract."""

    def __init__(self, config: Config, run: RunPaths) -> None:
        super().__init__(run, PassPaths(run.extraction))
        self._config = config
        self._verdicts = self._read_validation_records()
        validated = {path.parents[1].name for path in run.validation_ledgers()}
        validated |= {verdict.number for verdict in self._verdicts.values()}
        last = max((int(one) for one in validated if re.fullmatch(r"\d{3,9}", one)), default=0)
        self.next_validation = f"{1 + last:03d}"
        self.unvalidated = (
            _none_of("/".join(path.with_suffix("").parts[-3:]) for path in run.validation_ledgers())
            + r"\d\d\d+"
        )
        """Pattern of the `<number>` of `<number>/<extracted>.json` that `validate_pass` may still make."""

    def extraction_id(self) -> str:
        """Of what the configuration asks for now; empty if that is not known: invalid layer ids, a
        target not described."""
        try:
            return identify_extraction(
                TargetDescription.read(self._run.target), self._config.extraction
            ).extraction_id
        except Eagle3DataError:
            return ""

    def check_store(self) -> None:
        """Raises StorageError where there can be no store, or it cannot be read: it would seem empty."""
        check_root(self._config.extraction.store)
        if extraction_id := self.extraction_id():
            Store(self._config.extraction.store, extraction_id).check_readable()

    def _files(self) -> tuple[Path, Path]:
        return self._run.batches, self._run.target

    def _look(self, batches_json: Path, target_json: Path) -> TokensView:
        return TokensView(self._config.extraction, batches_json, target_json)

    def made_by(self, batch: str) -> Made:
        if self._run.rejected(batch).exists():
            return self._next_pass(batch)
        made = super().made_by(batch)
        view = self.view()
        assert isinstance(view, TokensView)
        if not made.exists and view.is_complete_in_store(batch):
            return Made(str(self._paths.stored_ledger(self.next_number)), False)
        return made

    def validated_by(self, batch: str) -> Made:
        """The ledger of the job that validated `batch` as it was extracted, or else the one that will: of the
        pass that extracts the batch, so that what another pass does is not waited for."""
        made, verdict = self.made_by(batch), self._verdicts.get(batch)
        extracted = "/".join(Path(made.ledger).with_suffix("").parts[-2:])
        if made.exists and verdict and verdict.extracted == extracted:
            ledger = self._run.validation_ledger(verdict.number, extracted)
            if verdict.fingerprint == self.fingerprint(batch) and ledger.exists():
                return Made(str(ledger), True)
        return Made(str(self._run.validation_ledger(self.next_validation, extracted)), False)

    def _read_validation_records(self) -> dict[str, BatchVerdict]:
        found = {}
        for path in sorted(self._run.validation.glob("records/*.json")):
            try:
                found[path.stem] = BatchVerdict.read(path)
            except InputError:
                self._damaged.append(path)
        return found

    def _kinds(self) -> tuple[tuple[Path, type[Record]], ...]:
        return (
            (self._run.target, TargetDescription),
            (self._run.batches, BatchIndex),
            (self._run.report, Findings),
            (self._paths.ledger("[0-9]*", "*"), Ledger),
            (self._run.gate("*"), Gate),
            (self._run.verdict("*"), BatchVerdict),
            (self._run.rejected("*"), BatchVerdict),
            (self._run.validation_ledger("[0-9]*", "[0-9]*/*"), ValidationLedger),
            (self._run.reference, Reference),
        )

    def pass_memory_mb(self) -> int:
        """Host memory to ask for in one job of a pass."""
        view = self.view()
        assert isinstance(view, TokensView)
        return view.pass_memory_mb()

    def reference_minutes(self) -> int:
        """Walltime to ask for to compare samples with transformers."""
        return ceil(MARGIN * min(self._reference_forecast().seconds, LONGEST_S) / 60)

    def reference_memory_mb(self) -> int:
        """Host memory for the same."""
        return ceil(self._reference_forecast().memory_bytes / 1e6)

    def _reference_forecast(self) -> Forecast:
        """Before transformers knows the model, and small where nothing is known of it."""
        samples = self._config.validation.reference_samples
        if (target := TargetDescription.find(self._run.target)) is None:
            return forecast(Size(0, 0, 0, 0, 0), 0, 0, "cpu", 1)
        size = rough_size(
            target.weights_bytes, target.quantization, target.num_hidden_layers, target.hidden_size
        )
        return forecast(size, samples * LONGEST_ROWS, 4, "cpu", 8)


class TokensView(BatchesView):
    """The tokenized batches."""

    def __init__(self, extraction: Extraction, batches_json: Path, target_json: Path) -> None:
        super().__init__(extraction, batches_json, target_json)
        self._samples = batches_json.with_name("samples.parquet")
        self._in_store: dict[str, bool] = {}
        try:
            self._identity: ExtractionIdentity | None = identify_extraction(self._target, extraction)
        except ConfigError:  # invalid layer ids: check_compatibility reports them before any pass
            self._identity = None
        else:
            self._store = Store(extraction.store, self._identity.extraction_id)

    @property
    def identity(self) -> ExtractionIdentity | None:
        return self._identity

    def is_complete_in_store(self, batch: str) -> bool:
        """Whether every sample of the batch is in the store, whichever run put it there."""
        if not self._identity or not self._keys:
            return False
        if batch not in self._in_store:
            names = self._sample_file.names(self.entry(batch).row_group)
            self._in_store[batch] = all(name.key in self._keys for name in names)
        return self._in_store[batch]

    def pass_minutes(self, tokens: int, ledgers: Iterable[Ledger]) -> int:
        if not self._identity:
            return SHORTEST_MIN
        same = (ledger for ledger in ledgers if ledger.extraction_id == self._identity.extraction_id)
        pace = Pace.assumed(self._target.weights_bytes).measured_by(same)
        return walltime_min(tokens, pace, self._extraction.stop_before_end_s)

    def pass_memory_mb(self) -> int:
        if not self._identity:
            return SUPERVISOR_MB
        return host_memory_mb(
            self._extraction, len(self._identity.layers), self._target.hidden_size, self._target.weights_bytes
        )

    @cached_property
    def _sample_file(self) -> SampleFile:
        return SampleFile(self._samples)

    @cached_property
    def _keys(self) -> set[str]:
        return self._store.keys()


def stripe_of(batch: str, jobs: int) -> int:
    """The stripe a batch belongs to when `jobs` jobs share a pass."""
    return int(batch) % jobs


def _none_of(names: Iterable[str]) -> str:
    """Regular expression that refuses `<name>.json` of each of the names, and takes no text."""
    sealed = "|".join(map(re.escape, names))
    return rf"(?!(?:{sealed})\.json)" if sealed else ""
