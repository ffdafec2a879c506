"""What assembly demands before a sample may enter a set: its batch was validated, by this very plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_data.errors import InputError
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records import read_json
from eagle3_data.run_paths import RunPaths
from eagle3_data.seal import check_contents


def require_proof(run: RunPaths, index: Mapping[str, Any], identity: ExtractionIdentity) -> None:
    """Raises InputError unless the tokens are the sealed ones and every batch was validated whole: that the
    files exist says nothing of what is in them."""
    check_contents(run.tokens, index.get("files", {}))
    if not index["batches"]:
        raise InputError(f"{run.batches} names no batches, so there is nothing to assemble")
    for batch, entry in index["batches"].items():
        fingerprint = identity.batch_fingerprint(entry["fingerprint"])
        gate, verdict = read_json(run.gate(batch)), read_json(run.verdict(batch))
        left_out = gate.get("left_out")
        if (
            gate.get("fingerprint") != fingerprint
            or not isinstance(left_out, list)
            or gate.get("samples") != entry["samples"] - len(left_out)
        ):
            raise InputError(f"{run.gate(batch)} is not of this plan's batch; {_again(run.gate(batch))}")
        expected = {
            "fingerprint": fingerprint,
            "extraction_id": identity.extraction_id,
            "samples": gate["samples"],
            "rejected": {},
        }
        if wrong := [name for name, value in expected.items() if verdict.get(name) != value]:
            raise InputError(
                f"{run.verdict(batch)} does not prove batch {batch} as it is now ({', '.join(wrong)});"
                f" {_again(run.verdict(batch))}"
            )


def _again(path: object) -> str:
    return f"delete {path} and run the same command again"
