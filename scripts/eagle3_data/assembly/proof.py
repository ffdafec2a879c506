"""What assembly requires before a sample may enter a set: its batch was validated in the current
configuration, and it is still what was validated."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from eagle3_data.errors import InputError, SampleError, StorageError
from eagle3_data.extraction.store_care import fault_of
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.log import say
from eagle3_data.passes.ledger import Gate
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import check_contents
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.text import counted
from eagle3_data.validation.reference_verdict import Reference
from eagle3_data.validation.verdict import BatchVerdict


def require_proof(run: RunPaths, index: BatchIndex, identity: ExtractionIdentity) -> None:
    """Raises InputError unless the tokens are the sealed ones and every batch was validated whole: that the
    files exist says nothing of what is in them. The reference must have been tried, and have found nothing
    wrong."""
    check_contents(run.tokens, index.files)
    reference = Reference.read(run.reference)
    if reference.extraction_id != identity.extraction_id or reference.status == "failed":
        raise InputError(f"{run.reference} is of another extraction; {_again(run.reference)}")
    if not index.batches:
        raise InputError(f"{run.batches} names no batches, so there is nothing to assemble")
    for batch, entry in index.batches.items():
        fingerprint = identity.batch_fingerprint(entry.fingerprint)
        gate, verdict = Gate.read(run.gate(batch)), BatchVerdict.read(run.verdict(batch))
        if gate.fingerprint != fingerprint or gate.samples != entry.samples - len(gate.left_out):
            raise InputError(
                f"{run.gate(batch)} belongs to an earlier configuration; {_again(run.gate(batch))}"
            )
        expected = {
            "fingerprint": fingerprint,
            "extraction_id": identity.extraction_id,
            "samples": gate.samples,
            "rejected": {},
        }
        if run.rejected(batch).exists():
            raise InputError(
                f"a sample of batch {batch} was rejected after its validation ({run.rejected(batch)});"
                " run the same command again, which extracts it again"
            )
        if wrong := [name for name, value in expected.items() if getattr(verdict, name) != value]:
            raise InputError(
                f"{run.verdict(batch)} does not prove batch {batch} as it is now ({', '.join(wrong)});"
                f" {_again(run.verdict(batch))}"
            )


def reject_changed(run: RunPaths, index: BatchIndex, store: Store, without: Collection[str]) -> None:
    """Reject the samples that are damaged since their batch was validated, all but the keys of `without`, as
    validation itself does. Raises SampleError if there are any. Only of batches with files that are newer
    than the verdict, or of another size in all, are the states read: damage that keeps size and time shows
    when every byte is read (`store.py verify`, the rule `verify`)."""
    samples = SampleFile(run.samples)
    rejected = 0
    for batch, entry in index.batches.items():
        keys = [name.key for name in samples.names(entry.row_group) if name.key not in without]
        verdict = BatchVerdict.read(run.verdict(batch))
        validated_at_ns = verdict.validated_at_ns or run.verdict(batch).stat().st_mtime_ns
        if _is_as_validated(store, keys, verdict, validated_at_ns):
            continue
        faults = [fault for key in dict.fromkeys(keys) if (fault := fault_of(store, key))]
        for fault in faults:
            if not fault.is_damage:
                raise StorageError(f"{store.directory}: {fault.text}")
            say(f"batch {batch}: {store.states_path(fault.key)}: {fault.text}")
        if faults:
            found = {fault.key: f"changed since validation: {fault.text}" for fault in faults}
            replace(verdict, rejected=found).write(run.rejected(batch))
        rejected += len(faults)
    if rejected:
        raise SampleError(
            f"{counted(rejected, 'sample')} changed in {store.directory} since validation, see above;"
            " nothing is assembled, and the same command extracts what changed again"
        )


def _is_as_validated(store: Store, keys: Iterable[str], verdict: BatchVerdict, validated_at_ns: int) -> bool:
    size_bytes = 0
    for key in keys:
        try:
            states, sidecar = store.states_path(key).stat(), store.sidecar_path(key).stat()
        except OSError:
            return False
        if max(states.st_mtime_ns, sidecar.st_mtime_ns) > validated_at_ns:
            return False
        size_bytes += states.st_size
    return size_bytes == verdict.size_bytes


def _again(path: object) -> str:
    return f"delete {path} and run the same command again"
