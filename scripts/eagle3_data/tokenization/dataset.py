"""Tokenization from sources to the four files of tokens/, of which all or none are written."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3_data.config import Data, Source, Target, Tokenization
from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes
from eagle3_data.progress import Progress
from eagle3_data.records import JsonObject
from eagle3_data.records.batch_index import BatchIndex, SealedFile
from eagle3_data.records.checksum import file_checksum
from eagle3_data.records.seal import seal_files
from eagle3_data.target import TargetDescription
from eagle3_data.text import counted
from eagle3_data.tokenization.batches import BatchWriter
from eagle3_data.tokenization.ledger import LedgerWriter
from eagle3_data.tokenization.placement import (
    TRAIN,
    VALIDATION,
    PlacedSample,
    Spool,
    equal_batches,
    full_batches,
    trainer_ratio,
)
from eagle3_data.tokenization.reading.near_duplicates import NearDuplicates
from eagle3_data.tokenization.reading.rows import Drop, Outcome, Sample
from eagle3_data.tokenization.reading.sources import files_of, read_sources
from eagle3_data.tokenization.samples import RowTokenizer
from eagle3_data.tokenization.tokenizer import TargetTokenizer, load_tokenizer
from eagle3_data.tokenization.workers import map_rows

SEALED_FILES = ("samples.parquet", "ledger.parquet", "token_frequencies.npy")
FILES = (*SEALED_FILES, "batches.json")
"""What is written, in the order of the moves into place: batches.json, which seals the others, comes last."""

UNFINISHED = ".unfinished-"


@dataclass(frozen=True)
class TokenizationJob:
    """The sections of the configuration that tokenization reads, and the target's description."""

    data: Data
    tokenization: Tokenization
    target: Target
    description: TargetDescription


@dataclass(frozen=True)
class Tokenized:
    """The content of batches.json, and remarks for people: why rows were dropped, and what else they should
    notice."""

    index: BatchIndex
    remarks: list[str]

    def summary(self) -> str:
        index = self.index
        dropped = sum(index.dropped.values())
        return "\n".join(
            (
                f"{counted(index.rows, 'row')}: {index.rows - dropped:,} kept, {dropped:,} dropped",
                *(f"  {line}" for line in self.remarks),
                (
                    f"{counted(index.samples, 'sample')} in {counted(len(index.batches), 'batch')},"
                    f" {counted(index.tokens, 'token')}, {index.trained_tokens:,} of them trained;"
                    f" longest sample: {counted(index.longest, 'token')}"
                ),
            )
        )


MakeReader = Callable[[TargetTokenizer], RowTokenizer]
"""What turns rows into samples, for a tokenizer."""


def tokenize_dataset(
    job: TokenizationJob, output: Path, processes: int = 1, make_reader: MakeReader | None = None
) -> Tokenized:
    """Tokenize all sources into directory `output`.

    Raises InputError if a source cannot be read, a row is bad and must not be, or nothing at all is kept.
    `output` is then as it was before. The files do not depend on `processes`. Without `make_reader`, the
    samples are the data set's own conversations.
    """
    with all_or_none(output, FILES) as directory:
        return _write_all(job, directory, processes, make_reader)


@contextmanager
def all_or_none(output: Path, names: Sequence[str]) -> Iterator[Path]:
    """A directory in which to write the files `names`; without an error, they then take their places in
    `output`, in this order."""
    output.mkdir(parents=True, exist_ok=True)
    for unfinished in output.glob(f"{UNFINISHED}*"):  # of a run that was killed
        shutil.rmtree(unfinished, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=UNFINISHED) as directory:
        yield Path(directory)
        for name in names:
            os.replace(Path(directory) / name, output / name)


class RowProgress(Progress):
    """Rows a second and drops so far."""

    def _rates(self) -> str:
        dropped = f"{self._failed} dropped"
        if self._bar is not None:
            return dropped  # the bar has its own rate
        return f"{self._done / max(time.monotonic() - self._started, 1e-9):,.0f} rows/s, {dropped}"


def _write_all(
    job: TokenizationJob, directory: Path, processes: int, make_reader: MakeReader | None
) -> Tokenized:
    settings = job.tokenization
    tokenizer = load_tokenizer(job.description, job.target, settings)
    tokenize = make_reader(tokenizer) if make_reader else RowTokenizer(tokenizer, job.data, settings)
    ledger = LedgerWriter(directory / "ledger.parquet")
    kept = kept_samples(job, tokenize, ledger, processes)
    batches = _write_batches(kept, settings, job.data.train_ratio, directory, tokenizer.vocab_size)
    ledger.close()
    if not batches.batches:
        raise InputError(_nothing_kept(ledger))
    np.save(directory / "token_frequencies.npy", batches.frequencies)
    remarks = ledger.remarks(settings.max_length)
    index = BatchIndex(
        batches=batches.batches,
        **batches.totals(),
        rows=ledger.rows,
        dropped=dict(ledger.dropped),
        dropped_turns=dict(ledger.dropped_turns),
        truncated=ledger.truncated,
        without_mask=ledger.without_mask,
        notices=ledger.notices(),
        remarks=remarks,
        split=_split(batches, job.data.train_ratio),
        tokenizer=_describe(tokenizer, tokenize),
        generation=tokenize.generation,
        sources={source.name or "": _seal_source(source) for source in job.data.sources},
        files=seal_files(directory, SEALED_FILES),
    )
    index.write(directory / "batches.json")
    return Tokenized(index, [*ledger.explain_drops(), *remarks])


def kept_samples(
    job: TokenizationJob, tokenize: RowTokenizer, ledger: LedgerWriter, processes: int
) -> Iterator[PlacedSample]:
    """The samples that are kept, in input order; the outcome of every row goes to the ledger."""
    sources, settings = job.data.sources, job.tokenization
    seen: set[bytes] = set()
    near = NearDuplicates(settings.near_duplicates) if settings.near_duplicates else None
    outcomes = map_rows(tokenize, read_sources(job.data), processes)
    with closing(outcomes), RowProgress("tokenize", "rows", 0) as progress:  # type: ignore[type-var]
        for outcome in outcomes:
            source = sources[outcome.source]
            if outcome.error and settings.on_bad_row == "error":
                raise InputError(
                    f"{source.path}, {outcome.error}. Correct the row, or set tokenization.on_bad_row: drop"
                    " to skip and count such rows"
                )
            samples, dropped = _without_duplicates(outcome, seen, near)
            conversation_id = f"{source.name}:{outcome.index}"
            placed = [
                PlacedSample(conversation_id + sample.suffix, conversation_id, TRAIN, sample)
                for sample in samples
            ]
            ledger.add(source.name, conversation_id, outcome, placed, dropped)
            progress.add(failed=not placed)
            yield from placed


def _without_duplicates(
    outcome: Outcome, seen: set[bytes], near: NearDuplicates | None
) -> tuple[list[Sample], list[Drop]]:
    samples, dropped = [], list(outcome.dropped)
    for sample in outcome.samples:
        key = bytes.fromhex(sample.key)  # 16 bytes: the set holds every sample of the run
        if key in seen:
            dropped.append(Drop(sample.suffix, "duplicate"))
        else:
            seen.add(key)
            samples.append(sample)
    if near and samples and not near.add(outcome.signature):
        return [], [Drop("", "near-duplicate"), *dropped]
    return samples, dropped


def _write_batches(
    kept: Iterator[PlacedSample],
    settings: Tokenization,
    train_ratio: float,
    directory: Path,
    vocab_size: int,
) -> BatchWriter:
    """Put the samples in training order and into batches: as they come, unless all must be known first."""
    starts_batch = full_batches(settings.batch_tokens)
    if train_ratio < 1 or settings.batches:
        spool = Spool(directory / "spool.arrow")
        for placed in kept:
            spool.add(placed)
        kept = spool.ordered(train_ratio)
        if settings.batches:
            starts_batch = equal_batches(settings.batches, spool.tokens)
    batches = BatchWriter(directory / "samples.parquet", starts_batch, vocab_size)
    for placed in kept:
        batches.add(placed)
    batches.close()
    return batches


def _split(batches: BatchWriter, train_ratio: float) -> JsonObject:
    train, validation = batches.rows[TRAIN], batches.rows[VALIDATION]
    return {
        "train": train,
        "validation": validation,
        "train_data_ratio": trainer_ratio(train, train + validation, train_ratio),
    }


def _describe(tokenizer: TargetTokenizer, tokenize: RowTokenizer) -> JsonObject:
    template = tokenizer.template
    return {
        "class": tokenizer.name,
        "special_ids": list(tokenizer.special_ids),
        "chat_template": hash_bytes(template.source.encode()) if template else None,
        "stops": list(tokenize.stops),
    }


def _seal_source(source: Source) -> dict[str, SealedFile]:
    """Size and checksum of each file of a source by its path; none of a dataset of the hub."""
    return {
        str(path): SealedFile(path.stat().st_size, file_checksum(path))
        for path in files_of(source)
        if path.is_file()
    }


def _nothing_kept(ledger: LedgerWriter) -> str:
    if not ledger.rows:
        return "the sources hold no rows at all; check data.sources"
    return "\n  ".join((f"all {counted(ledger.rows, 'row')} dropped:", *ledger.explain_drops()))
