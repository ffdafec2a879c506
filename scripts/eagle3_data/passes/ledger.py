"""The ledgers of passes, and the gates made from them. Standard library only, and little of it: a thousand
gates read this."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from eagle3_data.findings import Finding
from eagle3_data.records import MisfitError, Record, key
from eagle3_data.records.failures import Failure
from eagle3_data.records.replay import Replay

State = Literal["complete", "failed", "not_reached"]
COMPLETE: State = "complete"
FAILED: State = "failed"
NOT_REACHED: State = "not_reached"


@dataclass(frozen=True, kw_only=True)
class PassFacts(Record):
    """Which stripe of which pass wrote a record. `command` is what Snakemake was called with, None where the
    pass was called by hand. `stripe` is "stored" where no engine was needed."""

    number: str = key("pass")
    stripe: int | str
    extraction_id: str
    engine_log: str | None = None
    command: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9]{3,9}", self.number):
            raise MisfitError(f"must be a number of three digits or more, not {self.number[:20]!r}", "pass")


@dataclass(frozen=True)
class FailedSample(Record):
    """A sample that failed, and the path of its failure record."""

    sample_id: str
    key: str
    record: str


@dataclass(frozen=True)
class BatchOutcome(Record):
    """The outcome of a batch in one pass. `samples` counts those without the ones left out."""

    state: State
    fingerprint: str
    samples: int
    left_out: list[FailedSample]
    failed: list[FailedSample]
    not_reached: int


@dataclass(frozen=True, kw_only=True)
class Ledger(PassFacts):
    """What one stripe of a pass did, or which batches were complete in the store before a pass was needed;
    then only the first fields say something. `load_s` is None where no model was loaded; `crashes` counts, by
    sample key, the engines that died while they had the sample. `replay` is None where the pass stored
    nothing."""

    batches: dict[str, BatchOutcome]
    failure: Failure | None = None
    written_bytes: int = 0
    stripes: int = 1
    layers: list[int] = field(default_factory=list)
    requested_layers: list[int] | None = None
    layer_convention: str = ""
    target: str = ""
    target_resolved: str = ""
    """Where the target really lay when the pass was to load it."""
    host: str = ""
    slurm_job_id: str | None = None
    devices: str | None = None
    tensor_parallel: int = 1
    started_at: float = 0.0
    elapsed_s: float = 0.0
    lease_wait_s: float = 0.0
    model_loads: int = 0
    load_s: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    kernels: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    extraction_s: float = 0.0
    samples_extracted: int = 0
    tokens_extracted: int = 0
    canary: list[Finding] = field(default_factory=list)
    replay: Replay | None = None
    answers: dict[str, int] = field(default_factory=dict)
    """Of a generation pass: how many answers ended in which way."""
    crashes: dict[str, int] = field(default_factory=dict, metadata={"key": "deaths"})


@dataclass(frozen=True)
class Gate(Record):
    """The target `batches/<batch>.json`: the batch is complete, as that ledger says."""

    batch: str
    fingerprint: str
    ledger: str
    samples: int
    left_out: list[FailedSample]
