"""What assembly demands before a sample may enter a set: its batch was validated, by this very plan."""

from __future__ import annotations

from eagle3_data.errors import InputError
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.passes.ledger import Gate
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import check_contents
from eagle3_data.validation.verdict import BatchVerdict


def require_proof(run: RunPaths, index: BatchIndex, identity: ExtractionIdentity) -> None:
    """Raises InputError unless the tokens are the sealed ones and every batch was validated whole: that the
    files exist says nothing of what is in them."""
    check_contents(run.tokens, index.files)
    if not index.batches:
        raise InputError(f"{run.batches} names no batches, so there is nothing to assemble")
    for batch, entry in index.batches.items():
        fingerprint = identity.batch_fingerprint(entry.fingerprint)
        gate, verdict = Gate.read(run.gate(batch)), BatchVerdict.read(run.verdict(batch))
        if gate.fingerprint != fingerprint or gate.samples != entry.samples - len(gate.left_out):
            raise InputError(f"{run.gate(batch)} is not of this plan's batch; {_again(run.gate(batch))}")
        expected = {
            "fingerprint": fingerprint,
            "extraction_id": identity.extraction_id,
            "samples": gate.samples,
            "rejected": {},
        }
        if wrong := [name for name, value in expected.items() if getattr(verdict, name) != value]:
            raise InputError(
                f"{run.verdict(batch)} does not prove batch {batch} as it is now ({', '.join(wrong)});"
                f" {_again(run.verdict(batch))}"
            )


def _again(path: object) -> str:
    return f"delete {path} and run the same command again"
