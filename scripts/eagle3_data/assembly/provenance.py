"""Where a training set comes from, its `provenance.json`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from eagle3_data.findings import Finding
from eagle3_data.passes.ledger import FailedSample
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records import JsonObject, Record
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.target import TargetDescription
from eagle3_data.validation.verdict import AppliedProof


@dataclass(frozen=True)
class EngineUse(Record):
    """What passes computed states with: versions, the kernels that vLLM reported, and the VLLM_* variables
    that were set."""

    versions: dict[str, str]
    kernels: list[str]
    environment: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Provenance(Record):
    """`left_out` are the failed samples that `extraction.max_failed_fraction` allowed, `states` counts how
    the states were linked, `dropped` counts input rows by reason. `proofs` and `not_proven` are those of
    the run (`eagle3_data.passes.proofs`); sets of earlier versions have neither."""

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


def engines_used(results: Path, extraction_id: str) -> list[EngineUse]:
    """What this run's passes computed states with, each combination once. For states that another run put
    into the store, see their sidecars."""
    used: list[EngineUse] = []
    for ledger in PassPaths(RunPaths(results).extraction).read_ledgers():
        one = EngineUse(ledger.versions, ledger.kernels, ledger.environment)
        if ledger.model_loads and ledger.extraction_id == extraction_id and one not in used:
            used.append(one)
    return used
