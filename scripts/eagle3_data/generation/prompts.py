"""Conversations to what the target is asked, in batches: `prompts/prompts.parquet`, one row group a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from eagle3_data.config import Data, Generation, Tokenization
from eagle3_data.errors import InputError
from eagle3_data.generation.answers import Question
from eagle3_data.generation.dialogue import Asker, Conversation
from eagle3_data.hashing import hash_bytes, hash_json
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.seal import seal_files
from eagle3_data.samples import TOKEN_IDS, SampleFile
from eagle3_data.tokenization.dataset import TokenizationJob, all_or_none, kept_samples
from eagle3_data.tokenization.ledger import LedgerWriter
from eagle3_data.tokenization.masking.style import Message
from eagle3_data.tokenization.placement import PlacedSample, full_batches
from eagle3_data.tokenization.reading import rows
from eagle3_data.tokenization.reading.rows import Content, DropError, Notice, Sample
from eagle3_data.tokenization.samples import Made, RowTokenizer
from eagle3_data.tokenization.tokenizer import TargetTokenizer, load_tokenizer

SCHEMA = pa.schema(
    [
        ("sample_id", pa.string()),
        ("key", pa.string()),
        ("input_ids", pa.list_(pa.int32())),
        ("conversation", pa.string()),
    ]
)
"""Columns of prompts.parquet: `input_ids` are the prompt of the first turn; `conversation` as in `Unit`."""

FILES = ("prompts.parquet", "ledger.parquet")


@dataclass(frozen=True, slots=True)
class Unit(Sample):
    """One conversation to be answered as a whole: as a sample, `ids` are its first prompt, and nothing of it
    is trained. `conversation` is a `Conversation` as text, empty if there is one turn only."""

    conversation: str = ""


class UnitReader(RowTokenizer):
    """Turns rows into outcomes with units in place of samples."""

    def __init__(
        self, tokenizer: TargetTokenizer, data: Data, settings: Tokenization, generation: Generation
    ) -> None:
        super().__init__(tokenizer, data, settings)
        self._asker = Asker(tokenizer, settings)
        self._generation, self._max_length = generation, settings.max_length

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._asker.stops

    def samples_of(self, content: Content, trained: str) -> Made:
        units, notices = self.units_of(content)
        return Made(list(units), notices=notices)

    def units_of(self, content: Content) -> tuple[list[Unit], list[Notice]]:
        """What is to be asked, and what is to be said of it. Raises DropError."""
        if not isinstance(content, rows.Conversation):
            raise DropError("not-asked", "only conversations can be asked of the target")
        conversation, notices = self._conversation(content)
        prompt = self._asker.first(conversation)
        if len(prompt.ids) >= self._max_length:
            raise DropError("no-room", f"{len(prompt.ids)} tokens")
        text = conversation.to_text() if conversation.further else ""
        ids = np.array(prompt.ids, TOKEN_IDS).tobytes()
        units = []
        for number in range(1, self._generation.n + 1):
            key = unit_key(ids, self._asker, text, number)
            suffix = f"#{number}" if self._generation.n > 1 else ""
            units.append(Unit(suffix, key, ids, bytes(len(prompt.ids)), False, text))
        return units, notices

    def _conversation(self, content: rows.Conversation) -> tuple[Conversation, list[Notice]]:
        messages = content.messages
        places = _places(messages, content.untrained)
        if not places:
            raise DropError("not-asked")
        if self._generation.turns == "last":
            return Conversation(messages[: places[-1][0]], [], content.tools), []
        further: list[list[Message]] = []
        for (_, end), (start, _) in pairwise(places):
            if any(message["role"] == "tool" for message in messages[end:start]):
                if self._generation.tools == "drop":
                    raise DropError("tool-result")
                return Conversation(messages[: places[0][0]], further, content.tools), [Notice("tool-result")]
            further.append(messages[end:start])
        return Conversation(messages[: places[0][0]], further, content.tools), []


def _places(messages: Sequence[Message], context: frozenset[int]) -> list[tuple[int, int]]:
    """Where the target is to speak: first message and end of every run of the assistant's turns behind the
    first turn of a user, but for those turns that the data marks as context only; and the end of a
    conversation that ends with somebody else's turn."""
    roles = [message["role"] for message in messages]
    asked = roles.index("user") if "user" in roles else len(roles)
    own = [role == "assistant" and index > asked and index not in context for index, role in enumerate(roles)]
    places = []
    for is_own, run in groupby(range(len(roles)), own.__getitem__):
        if is_own:
            indices = list(run)
            places.append((indices[0], indices[-1] + 1))
    if asked < len(roles) and roles[-1] != "assistant":
        places.append((len(roles), len(roles)))
    return places


def unit_key(prompt_ids: bytes, asker: Asker, conversation: str, number: int) -> str:
    """The address of the answers to a conversation under one generation id; `number` counts those to the same
    one from 1."""
    asked = [list(asker.stops), number, [asker.identity, conversation] if conversation else None]
    return hash_bytes(prompt_ids, json.dumps(asked, ensure_ascii=False).encode())


class PromptFile(SampleFile):
    """Batches of units, read one at a time."""

    def questions(self, row_group: int) -> list[Question]:
        table = self._read(row_group, ["key", "input_ids", "conversation"])
        columns = (table[name].to_pylist() for name in ("key", "input_ids", "conversation"))
        return [Question(key, tuple(ids), text) for key, ids, text in zip(*columns, strict=True)]

    def check_keys(self, row_group: int) -> None:
        """The seal of the file has been checked; a key is not of its prompt alone."""


def plan_prompts(job: TokenizationJob, generation: Generation, output: Path, processes: int) -> BatchIndex:
    """Write what the target is asked into directory `output`. Raises InputError if a source cannot be read, a
    row is bad and must not be, or there is nothing to ask; `output` is then as it was before."""
    with all_or_none(output, (*FILES, "batches.json")) as directory:
        return _write_all(job, generation, directory, processes)


def _write_all(job: TokenizationJob, generation: Generation, directory: Path, processes: int) -> BatchIndex:
    tokenizer = load_tokenizer(job.description, job.target, job.tokenization)
    reader = UnitReader(tokenizer, job.data, job.tokenization, generation)
    ledger = LedgerWriter(directory / "ledger.parquet")
    kept = kept_samples(job, reader, ledger, processes)
    entries, samples, tokens = {}, 0, 0
    longest = job.tokenization.max_length
    with pq.ParquetWriter(directory / "prompts.parquet", SCHEMA, compression="zstd") as writer:
        for number, batch in enumerate(_batches(kept, job.tokenization.batch_tokens, generation.max_tokens)):
            writer.write_table(_table(batch))
            units = [placed.sample for placed in batch]
            entry = BatchEntry(
                row_group=number,
                samples=len(batch),
                tokens=sum(unit.tokens for unit in units),
                fingerprint=hash_json([[placed.sample_id, placed.sample.key] for placed in batch]),
                longest=longest,
            )
            entries[f"{number:05d}"] = entry
            samples, tokens = samples + entry.samples, tokens + entry.tokens
    ledger.close()
    if not entries:
        raise InputError("\n  ".join(("there is nothing to ask the target:", *ledger.explain_drops())))
    index = BatchIndex(
        batches=entries,
        samples=samples,
        tokens=tokens,
        longest=longest,
        rows=ledger.rows,
        dropped=dict(ledger.dropped),
        notices=ledger.notices(),
        remarks=[*ledger.explain_drops(), *ledger.remarks(job.tokenization.max_length)],
        tokenizer={"class": tokenizer.name, "stop_ids": list(reader.stop_ids)},
        files=seal_files(directory, FILES),
    )
    index.write(directory / "batches.json")
    return index


def _batches(
    kept: Iterator[PlacedSample], batch_tokens: int, max_tokens: int
) -> Iterator[list[PlacedSample]]:
    """Units in batches of about `batch_tokens` tokens, should every answer be as long as it may be."""
    starts, number = full_batches(batch_tokens), 0

    def batch_of(placed: PlacedSample) -> int:
        nonlocal number
        number += starts(placed.sample.tokens + max_tokens)
        return number

    for _, batch in groupby(kept, batch_of):
        yield list(batch)


def _table(batch: Sequence[PlacedSample]) -> pa.Table:
    units = [placed.sample for placed in batch]
    assert all(isinstance(unit, Unit) for unit in units)
    return pa.table(
        {
            "sample_id": [placed.sample_id for placed in batch],
            "key": [unit.key for unit in units],
            "input_ids": [np.frombuffer(unit.ids, TOKEN_IDS) for unit in units],
            "conversation": [unit.conversation for unit in units],  # type: ignore[attr-defined]
        },
        schema=SCHEMA,
    )
