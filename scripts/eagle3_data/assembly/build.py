"""Builds a training set: speculators' layout first, the other formats from it, last the seal. The finished
set takes the place of an earlier one at once, or not at all.

It is built in a folder beside its place, which is named after what goes into it: a call that was killed goes
on with what it had converted, and a call with other samples starts afresh.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from eagle3_data import FORMAT_VERSION, VERSION
from eagle3_data.assembly import modelopt, specforge
from eagle3_data.assembly.card import card
from eagle3_data.assembly.conversion import (
    Conversion,
    Format,
    Journal,
    convert,
    journal_of,
    require_room,
    size_of_conversion,
)
from eagle3_data.assembly.layout import CARD, CONVERTED, PROVENANCE, SEAL, TRAIN, foreign_files
from eagle3_data.assembly.modelopt import ModelOpt
from eagle3_data.assembly.proof import reject_changed, require_proof
from eagle3_data.assembly.provenance import (
    Provenance,
    Vocabulary,
    dates_and_hosts,
    engines_used,
    failures_by_cause,
    installed_versions,
    sources_used,
    without_secrets,
)
from eagle3_data.assembly.reader import require_last_layer
from eagle3_data.assembly.specforge import SpecForge, require_three
from eagle3_data.assembly.speculators import (
    Counts,
    accepted_findings,
    check_with_speculators,
    hidden_states_backend,
    link_rows,
    write_rows,
    write_token_frequencies,
)
from eagle3_data.assembly.split import Split, read_split
from eagle3_data.assembly.trainers import SPECFORGE, SPECULATORS, Training
from eagle3_data.assembly.verify import seal_set
from eagle3_data.config import Data, Extraction, Target, Tokenization, TrainingSet
from eagle3_data.errors import InputError, StorageError
from eagle3_data.hashing import hash_json
from eagle3_data.identity import ExtractionIdentity, identify_extraction
from eagle3_data.log import say
from eagle3_data.passes.ledger import FailedSample, Gate
from eagle3_data.passes.proofs import proofs_of_run
from eagle3_data.records import find_json
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.system.links import possible_link
from eagle3_data.target import TargetDescription, read_model_config, text_config
from eagle3_data.text import counted
from eagle3_data.validation.verdict import BatchVerdict
from eagle3_data.version import workflow_version
from eagle3_data.vocabulary import DraftVocabulary, choose_draft_vocabulary

ITEM_BYTES = {"bfloat16": 2, "float32": 4}
SHOWN_FILES = 5


@dataclass(frozen=True)
class Settings:
    """The sections of the configuration that assembly reads."""

    data: Data
    extraction: Extraction
    target: Target
    tokenization: Tokenization
    training_set: TrainingSet


@dataclass(frozen=True)
class _Inputs:
    """What a set is made from, proven and counted. `left_out` are the failed samples that are not in it."""

    run: RunPaths
    target: TargetDescription
    identity: ExtractionIdentity
    tokens: BatchIndex
    store: Store
    left_out: list[FailedSample]
    without: Collection[str]
    counts: Counts
    split: Split
    longest: int
    vocabulary: DraftVocabulary
    fingerprints: dict[str, str] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.split.train + self.split.validation


def build_training_set(settings: Settings, results: Path, output: Path, processes: int) -> None:
    """Make the training set of the run in `results` at `output`. Raises InputError, ConfigError, SampleError
    or StorageError, in words, where something stands against it; nothing is at `output` then that was not."""
    inputs = _read_inputs(settings, RunPaths(results))
    require_last_layer(inputs.identity.layers, inputs.target.num_hidden_layers, "this run")
    formats: list[str] = [name for name in CONVERTED if name in settings.training_set.formats]
    if SPECFORGE in formats:
        require_three(inputs.identity.layers)
    if foreign := foreign_files(output):
        shown = ", ".join(foreign[:SHOWN_FILES]) + (" ..." if len(foreign) > SHOWN_FILES else "")
        raise InputError(
            f"{output} would be replaced, and holds what this workflow did not write: {shown}; move that"
            " away, or name another directory"
        )
    output.parent.mkdir(parents=True, exist_ok=True)
    with _building_place(output, inputs) as building:
        _check_room(settings, inputs, building, formats)
        facts = _write_base(settings, inputs, results, output, building, formats)
        for name in formats:
            _write_format(name, settings, inputs, building, processes)
        training = _training(settings, inputs, output)
        _write_words(facts, training, inputs, building, formats)
        seal_set(building, inputs.run.samples, inputs.store, inputs.without, inputs.fingerprints, formats)
        for name in formats:
            journal_of(building / name).unlink(missing_ok=True)
        (building / _LOCK).unlink()
        shutil.rmtree(output, ignore_errors=True)
        building.rename(output)
    _say_what_was_made(facts, output)


def _read_inputs(settings: Settings, run: RunPaths) -> _Inputs:
    target = TargetDescription.read(run.target)
    identity = identify_extraction(target, settings.extraction)
    tokens = BatchIndex.read(run.batches)
    require_proof(run, tokens, identity)
    by_batch = {batch: Gate.read(run.gate(batch)).left_out for batch in sorted(tokens.batches)}
    left_out = [sample for samples in by_batch.values() for sample in samples]
    without = {sample.key for sample in left_out}
    store = Store(settings.extraction.store, identity.extraction_id)
    reject_changed(run, tokens, store, without)
    counts = Counts(tokens.tokens, tokens.trained_tokens, np.load(run.frequencies))
    for batch in (batch for batch, missing in by_batch.items() if missing):
        samples = SampleFile(run.samples).samples(tokens.batches[batch].row_group)
        counts.take_out(sample for sample in samples if sample.key in without)
    return _Inputs(
        run=run,
        target=target,
        identity=identity,
        tokens=tokens,
        store=store,
        left_out=left_out,
        without=without,
        counts=counts,
        split=read_split(run.samples, without, settings.data.train_ratio),
        longest=tokens.longest,
        vocabulary=choose_draft_vocabulary(
            counts.frequencies, settings.training_set.draft_vocab_size, tokens.tokenizer["special_ids"]
        ),
        fingerprints={
            batch: identity.batch_fingerprint(entry.fingerprint) for batch, entry in tokens.batches.items()
        },
    )


# ---- the place where it is built

_LOCK = ".lock.part"


@contextmanager
def _building_place(output: Path, inputs: _Inputs) -> Iterator[Path]:
    """The folder in which the set is built; what other calls that were killed left is removed. Raises
    StorageError where another call is at it."""
    content = [
        VERSION, FORMAT_VERSION, inputs.identity.extraction_id, sorted(inputs.fingerprints.values()),
        sorted(inputs.without), {name: asdict(file) for name, file in inputs.tokens.files.items()},
    ]  # fmt: skip
    building = output.parent / f".{output.name}.{hash_json(content)[:16]}.part"
    for unfinished in output.parent.glob(f".{output.name}.*.part"):
        if unfinished != building:
            shutil.rmtree(unfinished, ignore_errors=True)
    building.mkdir(exist_ok=True)
    with open(building / _LOCK, "wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"another call is building {output} at this moment; wait for its end"
            ) from None
        except OSError:
            say(f"{building} is on a file system without locks: do not start a second call")
        for path in building.iterdir():  # all but what was converted is made in moments
            if path.name in CONVERTED or path.name.endswith(".part"):
                continue
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        yield building


def _check_room(settings: Settings, inputs: _Inputs, building: Path, formats: list[str]) -> None:
    """Before anything is written. What an earlier call has converted is there already."""
    per_format = size_of_conversion(
        inputs.rows,
        inputs.counts.tokens,
        len(inputs.identity.layers),
        inputs.target.hidden_size,
        ITEM_BYTES[settings.extraction.dtype],
    )
    needed = {}
    if possible_link(inputs.store.directory.parent, building) == "copy":
        verdicts = (BatchVerdict.read(inputs.run.verdict(batch)) for batch in inputs.tokens.batches)
        needed["speculators (the store is on another file system, so states are copied)"] = sum(
            verdict.size_bytes for verdict in verdicts
        )
    for name in formats:
        needed[name] = max(0, per_format - Journal(journal_of(building / name)).size_bytes)
    require_room(building, needed)


# ---- its parts


def _write_base(
    settings: Settings, inputs: _Inputs, results: Path, output: Path, building: Path, formats: list[str]
) -> Provenance:
    """The set in speculators' format, opened as its trainer does."""
    rows = write_rows(inputs.run.samples, building, inputs.without)
    ways = link_rows(inputs.run.samples, inputs.store, building, rows, inputs.without)
    write_token_frequencies(inputs.counts.frequencies, building)
    vocabulary = inputs.vocabulary
    if vocabulary.d2t is not None and vocabulary.t2d is not None:
        np.save(building / f"d2t-{vocabulary.size}.npy", vocabulary.d2t)
        np.save(building / f"t2d-{vocabulary.size}.npy", vocabulary.t2d)
    facts = _provenance(settings, inputs, results, output, ways, formats)
    facts.write(building / PROVENANCE)
    stored_dtype = inputs.identity.stored_dtype
    check_with_speculators(building, rows, settings.tokenization.max_length, stored_dtype)
    return facts


def _write_format(name: str, settings: Settings, inputs: _Inputs, building: Path, processes: int) -> None:
    path = Path(inputs.target.path)
    forms: dict[str, Format] = {
        "specforge": SpecForge(path, settings.target.trust_remote_code),
        "modelopt": ModelOpt(),
    }
    train_rows = inputs.split.train
    work = Conversion(building, building / name, forms[name], train_rows)
    names = (sample.sample_id for sample in SampleFile(inputs.run.samples).all_names(inputs.without))
    convert(work, names, inputs.rows, processes)
    vocabulary = inputs.vocabulary
    if vocabulary.d2t is None or vocabulary.t2d is None:
        return
    if name == SPECFORGE:
        specforge.write_vocabulary(work.directory, vocabulary.d2t, vocabulary.t2d)
    else:
        modelopt.write_vocabulary(work.directory, vocabulary.d2t)


def _write_words(
    facts: Provenance, training: Training, inputs: _Inputs, building: Path, formats: list[str]
) -> None:
    """The card and what trainers read; in each format's folder, too, since that may be moved alone."""
    (building / TRAIN).write_text(training.speculators_config(), encoding="utf-8")
    for folder in (building, *(building / name for name in formats)):
        (folder / CARD).write_text(card(facts), encoding="utf-8")
        facts.write(folder / PROVENANCE)
    if SPECFORGE in formats:
        model = text_config(read_model_config(Path(inputs.target.path)))
        draft = specforge.draft_config(model, inputs.identity.layers, inputs.vocabulary.size)
        folder = building / SPECFORGE
        (folder / "draft.json").write_text(json.dumps(draft, indent=1) + os.linesep, encoding="utf-8")
        text = training.specforge_config(evaluates=inputs.split.set_aside)
        (folder / TRAIN).write_text(text, encoding="utf-8")


def _training(settings: Settings, inputs: _Inputs, output: Path) -> Training:
    return Training(
        directory=output,
        draft=output.with_name("draft"),
        target=inputs.target.path,
        trust_remote_code=settings.target.trust_remote_code,
        layers=inputs.identity.layers,
        split=inputs.split,
        max_length=settings.tokenization.max_length,
        vocabulary=inputs.vocabulary.size if inputs.vocabulary.d2t is not None else None,
        backend=hidden_states_backend(inputs.identity.stored_dtype),
    )


def _provenance(
    settings: Settings,
    inputs: _Inputs,
    results: Path,
    output: Path,
    ways: dict[str, int],
    formats: list[str],
) -> Provenance:
    run, identity, tokens, vocabulary = inputs.run, inputs.identity, inputs.tokens, inputs.vocabulary
    verdicts = [BatchVerdict.read(run.verdict(batch)) for batch in sorted(tokens.batches)]
    proofs = proofs_of_run(run, identity.extraction_id, verdicts)
    dates, hosts = dates_and_hosts(results, identity.extraction_id)
    extraction = settings.extraction
    full = vocabulary.d2t is None
    return Provenance(
        workflow=workflow_version(),
        extraction_id=identity.extraction_id,
        extraction=asdict(identity),
        requested_layers=None if extraction.layers is None else list(extraction.layers),
        layer_convention=extraction.layer_convention,
        target=inputs.target,
        engines=engines_used(results, identity.extraction_id),
        rows=inputs.rows,
        tokens=inputs.counts.tokens,
        trained_tokens=inputs.counts.trained_tokens,
        dropped=tokens.dropped,
        generation=tokens.generation,
        left_out=inputs.left_out,
        accepted_findings=accepted_findings(results),
        draft_vocab_size=None if full else vocabulary.size,
        states=ways,
        seal=SEAL,
        proofs=proofs.applied,
        not_proven=proofs.not_proven,
        versions=installed_versions(),
        configuration=without_secrets(find_json(run.whole_config) or _as_json(settings)),
        sources=sources_used(settings.data, tokens.sources, run.row_ledger),
        tokenizer=tokens.tokenizer,
        failed=failures_by_cause(inputs.left_out),
        split=inputs.split,
        longest=inputs.longest,
        max_length=settings.tokenization.max_length,
        draft_vocabulary=Vocabulary(vocabulary.size, vocabulary.coverage, vocabulary.recommended, full),
        formats=_training(settings, inputs, output).formats([SPECULATORS, *formats]),
        dates=dates,
        hosts=hosts,
    )


def _as_json(settings: Settings) -> dict[str, object]:
    """The sections as JSON, for a call by hand, which has no other."""
    return {name: getattr(settings, name).model_dump(mode="json") for name in Settings.__dataclass_fields__}


def _say_what_was_made(facts: Provenance, output: Path) -> None:
    ways = ", ".join(f"{way} ({n})" for way, n in facts.states.items())
    say(f"{output}: {counted(facts.rows, 'row')}, {counted(facts.tokens, 'token')}, states by {ways}")
    for name, use in facts.formats.items():
        say(f"to train with {name}: {use.command}")
