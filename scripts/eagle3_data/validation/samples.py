"""The checks that every sample must pass before it may enter a training set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from eagle3_data.errors import InputError, SampleError, message_of
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import Sample
from eagle3_data.store import Sidecar, Store
from eagle3_data.store.states import States, number_problems, open_states, structure_problems
from eagle3_data.validation.coverage import CHECKSUM, GREEDY_TOKEN, NUMBERS, STRUCTURE, not_proven_of_batch
from eagle3_data.validation.head import Head
from eagle3_data.validation.verdict import AppliedProof

GREEDY_CHUNK = 256


@dataclass(frozen=True)
class Unknown:
    """A proof that cannot be made, and why."""

    reason: str


@dataclass
class Verdict:
    """`rejected` maps a sample's key to the reason; `greedy_unknown` says why no last state was held against
    the engine's next token, empty where each was."""

    samples: int = 0
    tokens: int = 0
    size_bytes: int = 0
    rejected: dict[str, str] = field(default_factory=dict)
    greedy_unknown: str = ""

    def proofs(self) -> list[AppliedProof]:
        """What was applied to how many samples, and which part of each it covers."""
        every = "every slot and token"
        return [
            *(
                AppliedProof(name, self.samples, every, rows=self.tokens)
                for name in (STRUCTURE, NUMBERS, CHECKSUM)
            ),
            AppliedProof(
                GREEDY_TOKEN,
                0 if self.greedy_unknown else self.samples,
                "last slot, last token",
                self.greedy_unknown or None,
                rows=0 if self.greedy_unknown else self.samples,
            ),
        ]

    def not_proven(self) -> list[str]:
        """In words, what none of the proofs covers."""
        return not_proven_of_batch(self.proofs())


def validate_samples(
    samples: list[Sample], store: Store, identity: ExtractionIdentity, hidden_size: int, head: Head | Unknown
) -> Verdict:
    """Check every sample: sidecar and checksum, structure, numbers, no state rows shared with another sample
    at another prefix, and the greedy token where `head` is known. Memory is bounded by one sample plus the
    last states [N, H] of a chunk. Raises StorageError where a sample may not be read: that rejects
    nothing."""
    verdict = Verdict(greedy_unknown=head.reason if isinstance(head, Unknown) else "")
    shared = SharedRows()
    last: list[tuple[str, torch.Tensor, int]] = []
    for sample in samples:
        verdict.samples += 1
        verdict.tokens += len(sample.token_ids)
        try:
            states, sidecar = open_checked(sample, store, identity, hidden_size)
        except SampleError as error:
            verdict.rejected[sample.key] = message_of(error) + (
                f" ({message_of(error.__cause__)})" if error.__cause__ else ""
            )
            continue
        verdict.size_bytes += sidecar.size_bytes
        if twin := shared.twin_of(sample, states):
            verdict.rejected[sample.key] = (
                f"shared-rows: its last state equals that of sample {twin}, whose tokens before it differ"
            )
            continue
        last.append(
            (
                sample.key,
                torch.from_numpy(states.values(slice(-1, None), -1).copy()[0]),
                sidecar.greedy_token,
            )
        )
    if isinstance(head, Unknown):
        return verdict
    for chunk in _chunks(last):
        vectors, greedy = (
            torch.stack([state for _, state, _ in chunk]),
            torch.tensor([token for _, _, token in chunk]),
        )
        for n in head.disagreements(vectors, greedy):
            verdict.rejected[chunk[n][0]] = (
                f"greedy-token: the engine's next token was {int(greedy[n])}, but its last state does not"
                " give it; the last slot is not the state after the last layer, before the final norm, at"
                " the last token"
            )
    return verdict


def open_checked(
    sample: Sample, store: Store, identity: ExtractionIdentity, hidden_size: int
) -> tuple[States, Sidecar]:
    """The states of a stored sample. Raises SampleError where sidecar, checksum, structure or numbers are not
    as they must be, StorageError where the sample may not be read."""
    path = store.states_path(sample.key)
    try:
        sidecar, states = store.read_sidecar(sample.key), open_states(path)
    except (InputError, SampleError) as error:
        raise SampleError(f"unreadable: {message_of(error)}") from error.__cause__
    if (sidecar.key, sidecar.extraction_id) != (sample.key, identity.extraction_id):
        raise SampleError(f"sidecar: it is that of {sidecar.extraction_id}/{sidecar.key}")
    if path.stat().st_size != sidecar.size_bytes or file_checksum(path) != sidecar.xxh3_128:
        raise SampleError(f"checksum: {path.name} is not the file that was committed")
    problems = structure_problems(
        states, sample.token_ids, len(identity.layers), hidden_size, identity.dtype
    ) or number_problems(states)
    if states.provenance.get("extraction_id") != identity.extraction_id:
        problems.append(
            (
                "wrong-extraction",
                (
                    f"the file says extraction id {states.provenance.get('extraction_id')}, expected"
                    f" {identity.extraction_id}"
                ),
            )
        )
    if problems:
        raise SampleError("; ".join(f"{name}: {message}" for name, message in problems))
    return states, sidecar


class SharedRows:
    """Finds samples that got another sample's states. The last row depends on all tokens of a sample, so two
    samples with different tokens never have it in common."""

    def __init__(self) -> None:
        self._seen: dict[int, str] = {}

    def twin_of(self, sample: Sample, states: States) -> str | None:
        row = xxhash.xxh3_64_intdigest(states.bits[-1].tobytes())
        return None if (first := self._seen.setdefault(row, sample.sample_id)) == sample.sample_id else first


def _chunks(items: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(items), GREEDY_CHUNK):
        yield items[start : start + GREEDY_CHUNK]
