"""The proofs of many batches become one list, and what it leaves is said in words."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from eagle3_data.passes.ledger import Gate, Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.proofs import UNRECORDED, RunProofs, proofs_of_run
from eagle3_data.records import MisfitError
from eagle3_data.records.replay import Replay, SlotErrors
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.validation.coverage import chance_of_meeting, describe_proofs, not_proven_of_run
from eagle3_data.validation.verdict import AppliedProof, BatchVerdict, merge_proofs

GREEDY = AppliedProof("greedy-token", 3, "last slot, last token", rows=3)
LOSS = AppliedProof("token-loss", 3, "last slot, 32 tokens", rows=96, figures={"median_loss": 2.0})
REPLAY = AppliedProof("replay", 8, "all")
REFERENCE = AppliedProof("reference", 2, "all")


def verdict(batch: str, *proofs: AppliedProof) -> BatchVerdict:
    return BatchVerdict(batch, "f", "e", 3, 9, 90, proofs=list(proofs))


def merged(*verdicts: BatchVerdict) -> RunProofs:
    return proofs_of_run(RunPaths(Path("results/none")), "e", verdicts)


def test_the_proofs_of_all_batches_are_one_list() -> None:
    unknown = replace(GREEDY, samples=0, rows=0, unknown="no norm")
    run = merged(
        verdict("0", GREEDY, LOSS), verdict("1", replace(GREEDY, samples=2, rows=2)), verdict("2", unknown)
    )
    assert run.applied == [replace(GREEDY, samples=5, rows=5), LOSS, unknown]
    assert "the meaning of a sample's last state: no norm" in run.not_proven
    assert UNRECORDED not in run.not_proven
    assert UNRECORDED in merged(verdict("0", GREEDY), verdict("1")).not_proven
    assert merged().not_proven == []


def test_figures_are_merged_as_their_names_say() -> None:
    parts = [(1, 5.0), (4, 1.0), (1, 2.0)]
    kinds = ("largest", "smallest", "number", "mean", "median")
    proofs = [replace(LOSS, samples=n, figures={f"{kind}_x": x for kind in kinds}) for n, x in parts]
    (merged,) = merge_proofs(proofs)
    assert merged.figures == {
        "largest_x": 5.0, "smallest_x": 1.0, "number_x": 8.0, "mean_x": 11 / 6, "median_x": 1.0
    }  # fmt: skip
    with pytest.raises(MisfitError, match="figures has a figure 'loss'"):
        replace(LOSS, figures={"loss": 1.0})


def test_a_verdict_of_the_version_before_is_read() -> None:
    proof = {"proof": "numbers", "samples": 3, "covers": "every slot and token", "unknown": None}
    read = BatchVerdict.from_json({**verdict("0").to_json(), "proofs": [proof]})
    assert read.proofs == [AppliedProof("numbers", 3, "every slot and token")]


def test_what_is_not_proven_follows_from_what_was_applied() -> None:
    nothing = "\n".join(not_proven_of_run([replace(GREEDY, samples=100)]))
    for text in ("no token-loss was made", "no reference was made", "no replay was made"):
        assert text in nothing
    all_of_it = [replace(GREEDY, samples=100), replace(LOSS, samples=100), REPLAY, REFERENCE]
    told = "\n".join(not_proven_of_run(all_of_it))
    assert "was made" not in told
    assert "a replay of 8 of 100 samples meets an error in 50% of them with a probability of 100%" in told
    assert "a reference of 2 of 100 samples" in told and "1% of them with a probability of 2%" in told
    every = [replace(proof, samples=8) for proof in all_of_it]
    assert not any("replay" in text or "reference" in text for text in not_proven_of_run(every))
    off = replace(REFERENCE, samples=0, unknown="it would take 9 hours")
    assert any("it would take 9 hours" in text for text in not_proven_of_run([GREEDY, off]))


def test_a_proof_is_described_with_its_figures() -> None:
    assert describe_proofs([LOSS, replace(REPLAY, samples=0, unknown="off")]) == [
        "token-loss: 3 samples, 96 rows (last slot, 32 tokens), median loss 2"
    ]


@pytest.mark.parametrize(("share", "affected"), [(0.0, 1), (0.1, 1), (0.2, 2), (0.5, 5), (1.0, 10)])
def test_the_chance_of_meeting_an_error_is_that_of_drawing(share: float, affected: int) -> None:
    draws = list(combinations(range(10), 3))
    met = sum(min(draw) < affected for draw in draws)
    assert chance_of_meeting(share, 3, 10) == pytest.approx(met / len(draws))
    assert chance_of_meeting(share, 20, 10) == 1


def test_replays_are_those_of_the_passes_whose_samples_count(tmp_path: Path) -> None:
    run = RunPaths(tmp_path / "results/test")
    good = Replay(samples=["a", "b"], rows=30, slots=[SlotErrors(2, 0.01, 0.02, 0.03)])
    replays = {
        "001": good,
        "002": replace(good, failed={"a": "slot 1"}),
        "003": replace(good, samples=["c"], rows=5, unfinished="the engine died"),
        "004": Replay(unfinished="validation.replay_samples is 0"),
        "005": None,
    }
    for number, replay in replays.items():
        ledger = Ledger(
            number=number, stripe=0, extraction_id="e", batches={}, samples_extracted=2, replay=replay
        )
        ledger.write(PassPaths(run.extraction).ledger(number, 0))
    Gate("00000", "f", "results/test/extraction/passes/006/stored.json", 4, []).write(run.gate("00000"))
    proofs = proofs_of_run(run, "e", [verdict("00000", GREEDY)])
    assert [(one.samples, one.rows, one.unknown) for one in proofs.applied if one.proof == "replay"] == [
        (3, 35, None),
        (0, 0, "the replay of pass 003 is not complete: the engine died"),
        (0, 0, "the replay of pass 004 is not complete: validation.replay_samples is 0"),
        (
            0,
            0,
            "the replay of pass 005 is not complete: made by an earlier version",
        ),
        (0, 0, "4 samples found in the store, of another run or of a pass that was killed"),
    ]
    assert sum("of a pass that was killed" in text for text in proofs.not_proven) == 1
