"""The proofs of a run: of its batches, its passes and its target, for the summary, the provenance and the
card of the training set. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eagle3_data.records.run_paths import RunPaths
from eagle3_data.validation.coverage import not_proven_of_run
from eagle3_data.validation.verdict import AppliedProof, BatchVerdict, merge_proofs

UNRECORDED = "what an earlier version of this workflow validated without recording its proofs"


@dataclass(frozen=True)
class RunProofs:
    """`applied` has one entry for each proof and coverage, `not_proven` says in words what they leave."""

    applied: list[AppliedProof]
    not_proven: list[str]


def proofs_of_run(run: RunPaths, extraction_id: str, verdicts: Iterable[BatchVerdict]) -> RunProofs:
    """Of the batches that have `verdicts`, and of the run as a whole."""
    verdicts = list(verdicts)
    if not verdicts:
        return RunProofs([], [])
    of_run = proofs_beside_batches(run, extraction_id)
    applied = merge_proofs([*(proof for verdict in verdicts for proof in verdict.proofs), *of_run])
    unrecorded = [UNRECORDED] if any(not verdict.proofs for verdict in verdicts) else []
    return RunProofs(applied, [*not_proven_of_run(applied), *unrecorded])


def proofs_beside_batches(run: RunPaths, extraction_id: str) -> list[AppliedProof]:
    """The proofs that are made of an extraction as a whole, from the records that hold them."""
    return []
