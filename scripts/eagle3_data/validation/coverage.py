"""What is proven of a run, and what is not, in words: from the proofs that were applied, and nothing else.
Standard library only: the status says it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import comb

from eagle3_data.text import counted
from eagle3_data.validation.verdict import AppliedProof

# The names of the proofs.
STRUCTURE, NUMBERS, CHECKSUM = "structure", "numbers", "checksum"
GREEDY_TOKEN, TOKEN_LOSS = "greedy-token", "token-loss"
SHARED_ROWS, SHARED_PREFIX = "shared-rows", "shared-prefix"
REPLAY, REFERENCE = "replay", "reference"

SHARES = (0.5, 0.1, 0.01)
"""Of samples that an error affects, for which it is said how probably a sampled proof meets it."""


def chance_of_meeting(share: float, drawn: int, samples: int) -> float:
    """The probability that of `drawn` samples, out of `samples`, at least one is among the `share` of them
    (rounded up to whole samples) that an error affects."""
    drawn = min(drawn, samples)
    affected = min(samples, max(1, round(share * samples)))
    return 1 - comb(samples - affected, drawn) / comb(samples, drawn) if samples else 0.0


def describe_proofs(proofs: Iterable[AppliedProof]) -> list[str]:
    """A line for each proof that was applied."""
    return [
        f"{proof.proof}: {counted(proof.samples, 'sample')}"
        + (f", {counted(proof.rows, 'row')}" if proof.rows else "")
        + f" ({proof.covers})"
        + "".join(f", {name.replace('_', ' ')} {value:.4g}" for name, value in proof.figures.items())
        for proof in proofs
        if proof.samples
    ]


def not_proven_of_batch(proofs: Sequence[AppliedProof]) -> list[str]:
    """What the proofs of one batch do not cover."""
    below = "the meaning of states in any slot but the last: only a run's replay and reference look at them"
    return [*_last_slot(proofs), below]


def not_proven_of_run(proofs: Sequence[AppliedProof]) -> list[str]:
    """What all proofs of a run together do not cover."""
    samples = max((proof.samples for proof in proofs), default=0)
    return [
        *_last_slot(proofs),
        *_sampled(proofs, REFERENCE, samples, "layer, order and numbers of all slots but the last"),
        *_sampled(proofs, REPLAY, samples, "that no state depends on what else the engine computed then"),
    ]


def _last_slot(proofs: Sequence[AppliedProof]) -> list[str]:
    greedy, loss = _applied(proofs, GREEDY_TOKEN), _applied(proofs, TOKEN_LOSS)
    found = [f"the meaning of a sample's last state: {why}" for why in _reasons(proofs, GREEDY_TOKEN, greedy)]
    found += [
        f"the last slot at any token but a sample's last: {why}" for why in _reasons(proofs, TOKEN_LOSS, loss)
    ]
    if loss:
        rows = sum(proof.rows for proof in proofs if proof.proof == TOKEN_LOSS)
        found.append(f"the last slot at other tokens than the {rows:,} whose loss was computed")
    return found


def _sampled(proofs: Sequence[AppliedProof], name: str, samples: int, what: str) -> list[str]:
    drawn = _applied(proofs, name)
    reasons = [f"{what}: {why}" for why in _reasons(proofs, name, drawn)]
    if not drawn or drawn >= samples:
        return reasons
    chances = ", ".join(
        f"{share:.0%} of them with a probability of {chance_of_meeting(share, drawn, samples):.0%}"
        for share in SHARES
    )
    met = f"a {name} of {drawn:,} of {counted(samples, 'sample')} meets an error in {chances}"
    return [f"{what}, of every sample: {met}", *reasons]


def _applied(proofs: Sequence[AppliedProof], name: str) -> int:
    return sum(proof.samples for proof in proofs if proof.proof == name and not proof.unknown)


def _reasons(proofs: Sequence[AppliedProof], name: str, applied: int) -> list[str]:
    """Why a proof was not made, of some samples or of all."""
    found = list(dict.fromkeys(proof.unknown for proof in proofs if proof.proof == name and proof.unknown))
    return found or ([] if applied else [f"no {name} was made"])
