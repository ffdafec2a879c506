"""Validates the batches that one pass has extracted: measures each, keeps what was measured, and judges all
by the whole run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3_data.errors import Eagle3DataError, headline
from eagle3_data.log import say
from eagle3_data.progress import Progress
from eagle3_data.records.replay import Replay
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.text import counted
from eagle3_data.validation.coverage import not_proven_of_batch
from eagle3_data.validation.head import Unknown
from eagle3_data.validation.judging import Judge
from eagle3_data.validation.measured import Measured, TableHeader, find_table, write_table
from eagle3_data.validation.measuring import GREEDY_AT_ONCE, Begun, Measuring
from eagle3_data.validation.shared_prefix import PrefixIndex
from eagle3_data.validation.verdict import BatchVerdict

AGAIN = (
    "; the very same states were rejected before, so extracting them once more will not help: the engine"
    " repeats its fault (try another engine or version), or the proof is wrong about this sample (take its"
    " row out of the data, and report it)"
)


@dataclass(frozen=True)
class Subject:
    """A batch to validate: its place in samples.parquet, and the keys that the pass knowingly left out."""

    batch: str
    fingerprint: str
    row_group: int
    left_out: frozenset[str]


@dataclass(frozen=True)
class ValidationJob:
    """`subjects` are the batches of one pass and stripe, `extracted`; `others` are batches of the run that
    were or will be validated by other jobs, by their fingerprints. `number` is this job's."""

    run: RunPaths
    number: str
    extracted: str
    subjects: Sequence[Subject]
    others: dict[str, str]
    replay: Replay | None


@dataclass(frozen=True)
class _BegunBatch:
    """A batch that is read, whose greedy tokens go through lm_head together with those of others."""

    batch: str
    header: TableHeader
    begun: Begun


def validate(job: ValidationJob, measuring: Measuring) -> dict[str, str]:
    """Write the verdict of every batch. Returns, for each, why there is none, or an empty text."""
    outcomes: dict[str, str] = {}
    measured: dict[str, tuple[TableHeader, list[Measured]]] = {}
    file = SampleFile(job.run.samples)
    begun: list[_BegunBatch] = []
    with Progress("validation", "batches", len(job.subjects)) as progress:
        for subject in job.subjects:
            try:
                if found := _find_measured(job, subject, measuring):
                    measured[subject.batch] = found
                else:
                    begun.append(_begin(job, subject, measuring, file))
                outcomes[subject.batch] = ""
            except Eagle3DataError as error:
                outcomes[subject.batch] = headline(error)
                say(f"batch {subject.batch} is not validated: {headline(error)}")
            if sum(len(one.begun.places) for one in begun) >= GREEDY_AT_ONCE:
                measured |= _finish(job, measuring, begun)
                begun = []
            progress.add(failed=bool(outcomes[subject.batch]))
    measured |= _finish(job, measuring, begun)
    if measured:
        _judge(job, measuring, measured, file)
    return outcomes


def _find_measured(
    job: ValidationJob, subject: Subject, measuring: Measuring
) -> tuple[TableHeader, list[Measured]] | None:
    """What a job that was killed has measured of the batch as this pass extracted it."""
    found = find_table(job.run.validation_table(subject.batch), subject.fingerprint)
    record = BatchVerdict.find(job.run.validation_record(subject.batch))
    is_new = not (record and record.extracted == job.extracted)
    is_same = found and (found[0].extracted, found[0].unknown_head) == (job.extracted, _unknown(measuring))
    return found if is_new and is_same else None


def _begin(job: ValidationJob, subject: Subject, measuring: Measuring, file: SampleFile) -> _BegunBatch:
    now = measuring.store.now()
    measured_at_ns = int(now * 1e9) if now > 0 else 0
    header = TableHeader(subject.fingerprint, job.extracted, measured_at_ns, _unknown(measuring))
    samples = [one for one in file.samples(subject.row_group) if one.key not in subject.left_out]
    return _BegunBatch(subject.batch, header, measuring.begin(samples))


def _finish(
    job: ValidationJob, measuring: Measuring, begun: Sequence[_BegunBatch]
) -> dict[str, tuple[TableHeader, list[Measured]]]:
    """Write the tables of these batches."""
    finished = measuring.finish([one.begun for one in begun])
    for one, samples in zip(begun, finished, strict=True):
        path = job.run.validation_table(one.batch)
        write_table(path, one.header, samples, measuring.identity.layers)
    return {one.batch: (one.header, samples) for one, samples in zip(begun, finished, strict=True)}


def _unknown(measuring: Measuring) -> str:
    return measuring.head.reason if isinstance(measuring.head, Unknown) else ""


def _judge(
    job: ValidationJob,
    measuring: Measuring,
    measured: dict[str, tuple[TableHeader, list[Measured]]],
    file: SampleFile,
) -> None:
    tables = (
        find_table(job.run.validation_table(batch), fingerprint) for batch, fingerprint in job.others.items()
    )
    judge = Judge(
        measuring.store,
        measuring.head,
        measuring.identity.stored_dtype,
        [one for _, samples in measured.values() for one in samples],
        [one for found in tables if found for one in found[1]],
        PrefixIndex(file.all_ids()),
        job.replay,
        measuring.threads,
    )
    for subject in job.subjects:
        if subject.batch not in measured:
            continue
        header, samples = measured[subject.batch]
        proofs = judge.proofs(samples)
        rejected = {
            one.key: judge.rejected[one.key] + (AGAIN if measuring.store.was_quarantined(one.key) else "")
            for one in samples
            if one.key in judge.rejected
        }
        BatchVerdict(
            batch=subject.batch,
            fingerprint=subject.fingerprint,
            extraction_id=measuring.identity.extraction_id,
            samples=len(samples),
            tokens=sum(one.tokens for one in samples),
            size_bytes=sum(one.size_bytes for one in samples),
            rejected=rejected,
            proofs=proofs,
            not_proven=not_proven_of_batch(proofs),
            extracted=job.extracted,
            number=job.number,
            validated_at_ns=header.measured_at_ns,
        ).write(job.run.validation_record(subject.batch))
        say(f"batch {subject.batch}: {counted(len(samples), 'sample')}, {len(rejected)} rejected")
        for one in samples:
            if one.key in judge.unexplained:
                say(f"sample {one.sample_id} ({one.key}): token-loss: its states do not tell its tokens")
    _reject_elsewhere(job, judge)


def _reject_elsewhere(job: ValidationJob, judge: Judge) -> None:
    """Other batches' samples that turn out to be wrong: those batches are extracted again by the next run."""
    for batch, fingerprint in job.others.items():
        verdict = BatchVerdict.find(job.run.verdict(batch))
        if not verdict or verdict.fingerprint != fingerprint:
            continue
        table = find_table(job.run.validation_table(batch), fingerprint)
        keys = {one.key for one in table[1]} if table else set()
        if rejected := {key: reason for key, reason in judge.rejected.items() if key in keys}:
            replace(verdict, rejected=rejected).write(job.run.rejected(batch))
            say(f"batch {batch}, validated before: {counted(len(rejected), 'sample')} rejected")
