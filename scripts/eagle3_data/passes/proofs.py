"""The proofs of a run: of its batches, its passes and its target, for the summary, the provenance and the
card of the training set. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eagle3_data.passes.ledger import Gate, Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.records.replay import Replay
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.text import counted
from eagle3_data.validation.coverage import REPLAY, not_proven_of_run
from eagle3_data.validation.reference_verdict import Reference
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
    of_run = proofs_beside_batches(run, extraction_id)
    if not verdicts:
        return RunProofs(merge_proofs(of_run), [])
    applied = merge_proofs([*(proof for verdict in verdicts for proof in verdict.proofs), *of_run])
    unrecorded = [UNRECORDED] if any(not verdict.proofs for verdict in verdicts) else []
    return RunProofs(applied, [*not_proven_of_run(applied), *unrecorded])


def proofs_beside_batches(run: RunPaths, extraction_id: str) -> list[AppliedProof]:
    """The proofs that are made of an extraction as a whole, from the records that hold them."""
    reference = Reference.find(run.reference)
    compared = reference.proofs() if reference and reference.extraction_id == extraction_id else []
    return [*replays(run, extraction_id), *compared]


REPLAYED = "every slot and token, of the samples that passes replayed"


def replays(run: RunPaths, extraction_id: str) -> list[AppliedProof]:
    """An entry for each pass that stored something and, since nothing is known of those, one for all samples
    that other runs stored, or a pass that was killed."""
    ledgers = [
        ledger
        for ledger in PassPaths(run.extraction).read_ledgers()
        if ledger.extraction_id == extraction_id and ledger.samples_extracted
    ]
    proofs = [proof for ledger in ledgers for proof in _replay_of(ledger)]
    gates = [gate for path in sorted(run.gate("*").parent.glob("*.json")) if (gate := Gate.find(path))]
    if found := sum(gate.samples for gate in gates if gate.ledger.endswith("/stored.json")):
        why = f"{counted(found, 'sample')} found in the store, of another run or of a pass that was killed"
        proofs.append(AppliedProof(REPLAY, 0, REPLAYED, unknown=why))
    return proofs


def _replay_of(ledger: Ledger) -> list[AppliedProof]:
    """None of a pass of which nothing counts, since its replay failed."""
    replay = ledger.replay or Replay(unfinished="made by an earlier version")
    if replay.failed:
        return []
    proofs = []
    if replay.samples:
        slots = replay.slots
        figures = {
            "median_error": max(slot.median for slot in slots),
            "largest_p99_error": max(slot.p99 for slot in slots),
            "largest_error": max(slot.max for slot in slots),
        }
        proofs = [AppliedProof(REPLAY, len(replay.samples), REPLAYED, rows=replay.rows, figures=figures)]
    if replay.unfinished:
        why = f"the replay of pass {ledger.number} is not complete: {replay.unfinished}"
        proofs.append(AppliedProof(REPLAY, 0, REPLAYED, unknown=why))
    return proofs
