"""The whole of tokenization: sources in, the five files of tokens/ out, at once or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.config import Data, Target, Tokenization
from eagle3_data.errors import InputError
from eagle3_data.records import write_json
from eagle3_data.target import TargetDescription
from eagle3_data.tokenization.batches import BatchWriter, PlacedSample
from eagle3_data.tokenization.deduplication import KeySet
from eagle3_data.tokenization.ledger import LedgerWriter
from eagle3_data.tokenization.rows import REASONS, Outcome, Row, Sample
from eagle3_data.tokenization.samples import RowTokenizer
from eagle3_data.tokenization.sources import read_source
from eagle3_data.tokenization.tokenizer import load_tokenizer
from eagle3_data.tokenization.view import SampleView

FILES = ("samples.parquet", "ledger.parquet", "token_frequencies.npy", "samples.html", "batches.json")
"""What is written, in the order of the moves into place."""


@dataclass(frozen=True)
class Settings:
    """What tokenization reads of the configuration."""

    data: Data
    tokenization: Tokenization
    target: Target


def tokenize_dataset(settings: Settings, description: TargetDescription, output: Path) -> dict[str, Any]:
    """Tokenize all sources into directory `output` and return the content of batches.json.

    Raises InputError if a source cannot be read, a row is bad and must not be, or nothing at all is kept. Then `output` is
    as it was before.
    """
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output, prefix=".tokenizing-") as directory:
        record = _write_all(settings, description, Path(directory))
        for name in FILES:
            os.replace(Path(directory) / name, output / name)
    return record


def _write_all(settings: Settings, description: TargetDescription, directory: Path) -> dict[str, Any]:
    tokenizer = load_tokenizer(description, settings.target, settings.tokenization)
    if tokenizer.template is None:
        raise InputError(f"{description.path} has no chat template, and conversations need one; put the model's chat_template.jinja into that directory")
    names = [source.name for source in settings.data.sources]
    tokenize = RowTokenizer(tokenizer, settings.data, settings.tokenization)
    view = SampleView()
    ledger = LedgerWriter(directory / "ledger.parquet")
    batches = BatchWriter(directory / "samples.parquet", settings.tokenization.batch_tokens, description.vocab_size)
    seen = KeySet()
    for outcome in map(tokenize, _rows(settings.data)):
        if outcome.error and settings.tokenization.on_bad_row == "error":
            path = settings.data.sources[outcome.source].path
            raise InputError(f"{path}, {outcome.error}. Correct the row, or set tokenization.on_bad_row: drop to count it and go on")
        kept, dropped = _without_duplicates(outcome, seen)
        conversation_id = f"{names[outcome.source]}:{outcome.index}"
        placed = [PlacedSample(conversation_id + sample.suffix, conversation_id, "train", sample) for sample in kept]
        for sample in placed:
            batches.add(sample)
            view.offer(sample)
        ledger.add(_entry(names[outcome.source], conversation_id, outcome, placed, dropped))
    batches.close()
    ledger.close()
    if not batches.batches:
        raise InputError(_nothing_kept(ledger))
    np.save(directory / "token_frequencies.npy", batches.frequencies)
    (directory / "samples.html").write_text(view.render(tokenizer.backend), encoding="utf-8")
    record = {
        "batches": batches.batches,
        **batches.totals(),
        "rows": ledger.rows,
        "dropped": dict(ledger.dropped),
        "tokenizer": tokenizer.description,
    }
    write_json(directory / "batches.json", record)
    return record


def _rows(data: Data) -> Iterator[Row]:
    for number, source in enumerate(data.sources):
        yield from read_source(number, source)


def _without_duplicates(outcome: Outcome, seen: KeySet) -> tuple[list[Sample], list[tuple[str, str, str]]]:
    kept, dropped = [], list(outcome.dropped)
    for sample in outcome.samples:
        if seen.add(sample.key):
            kept.append(sample)
        else:
            dropped.append((sample.suffix, "duplicate", ""))
    return kept, dropped


def _entry(source: str, conversation_id: str, outcome: Outcome, placed: list[PlacedSample], dropped: list[tuple[str, str, str]]) -> dict[str, Any]:
    """The ledger's line. A row of which any sample is kept is kept; its detail then tells of the others."""
    reason = "" if placed else dropped[0][1]
    told = "; ".join(" ".join(part for part in (suffix, "" if why == reason else why, detail) if part) for suffix, why, detail in dropped)
    return {
        "source": source,
        "row": outcome.index,
        "conversation_id": conversation_id,
        "file_id": outcome.file_id,
        "fate": "kept" if placed else "dropped",
        "reason": reason,
        "detail": told,
        "sample_ids": [sample.sample_id for sample in placed],
        "tokens": sum(sample.sample.tokens for sample in placed),
        "trained_tokens": sum(sample.sample.trained_tokens for sample in placed),
        "truncated": any(sample.sample.truncated for sample in placed),
    }


def _nothing_kept(ledger: LedgerWriter) -> str:
    if not ledger.rows:
        return "the sources hold no rows at all; check data.sources"
    reasons = "".join(f"\n  {count} x {reason}: {REASONS[reason]}" for reason, count in ledger.dropped.most_common())
    return f"none of the {ledger.rows} rows is kept:{reasons}"


def summary(record: dict[str, Any]) -> Iterable[str]:
    """What to say of a finished tokenization."""
    dropped = record["dropped"]
    yield f"{record['rows']} rows: {record['rows'] - sum(dropped.values())} kept, {sum(dropped.values())} dropped"
    for reason, count in sorted(dropped.items()):
        yield f"  {count} x {reason}: {REASONS[reason]}"
    sizes = f"{record['samples']} samples, {record['tokens']} tokens ({record['trained_tokens']} trained), longest {record['longest']}"
    yield f"{sizes}, {len(record['batches'])} batches"
