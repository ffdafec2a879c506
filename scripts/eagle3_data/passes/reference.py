"""Which samples of a run are compared with transformers, and what is known already.

Once for each extraction id and kind of engine (the versions of its packages): the same engine computes the
same model in the same way for every sample. What passed is kept in the store, for all runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle3_data.canary.quantization import quantization_of
from eagle3_data.config import Extraction
from eagle3_data.errors import InputError, SampleError, headline
from eagle3_data.hashing import hash_json
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.log import say
from eagle3_data.passes.ledger import Gate
from eagle3_data.records import JsonObject, find_json
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.target import TargetDescription, read_model_config
from eagle3_data.validation.layer_errors import StoredSample
from eagle3_data.validation.reading import open_checked
from eagle3_data.validation.reference import ReferenceTarget, TooCostlyError, compare
from eagle3_data.validation.reference_cost import LONGEST_ROWS
from eagle3_data.validation.reference_verdict import DIRECTORY, EngineReference, Reference

OTHER_MODELS = ("hf_overrides", "hf_config_path", "rope_scaling", "rope_theta")
"""Engine arguments with which the engine computes another model than config.json describes."""
ROUNDING_METHODS = ("fp8", "fbgemm_fp8", "modelopt")
SHORTEST = 32
"""Tokens: of a shorter sample, the rows of one piece are judged, and little else."""


@dataclass(frozen=True)
class Candidate:
    key: str
    tokens: int
    row_group: int


@dataclass(frozen=True)
class EngineSamples:
    """What engines of one kind stored for a run. `versions` are those of its packages, of this workflow
    not."""

    versions: dict[str, str]
    candidates: list[Candidate]

    def record(self, store: Store) -> Path:
        return store.directory / DIRECTORY / f"{hash_json(self.versions)}.json"


class ReferenceRun:
    """The reference of a run whose batches are all extracted."""

    def __init__(
        self, run: RunPaths, target: TargetDescription, extraction: Extraction, identity: ExtractionIdentity
    ) -> None:
        self._run, self._target, self._extraction, self._identity = run, target, extraction, identity
        self._store = Store(extraction.store, identity.extraction_id)
        self._file = SampleFile(run.samples)

    def prove(self, number: int, trust_remote_code: bool) -> Reference:
        """Compare `number` samples of each kind of engine, or find that they were compared before."""
        if others := [name for name in OTHER_MODELS if self._extraction.engine_arguments.get(name)]:
            why = "with it, the engine computes another model than config.json describes to transformers"
            return self._without("unknown", f"extraction.engine_arguments.{others[0]}: {why}")
        known: dict[Path, EngineReference | None] = {}
        chosen: list[tuple[dict[str, str], list[StoredSample]]] = []
        for engine in self._engines():
            record = engine.record(self._store)
            known[record] = self._known(record, min(number, len(engine.candidates)))
            if known[record]:
                say(f"reference: {_named(engine.versions)} passed before, see {record}")
            elif samples := self._choose(engine, number):
                chosen.append((engine.versions, samples))
        try:
            done = (
                compare(self._reference_target(trust_remote_code), self._store.extraction_id, chosen)
                if chosen
                else []
            )
        except TooCostlyError as error:
            return self._without("off", str(error))
        except InputError as error:
            return self._without("unknown", str(error))
        for one in done:
            if one.passed:
                self._keep(one)
        verdicts = [*filter(None, known.values()), *done]
        if not verdicts:
            return self._without("unknown", "no stored sample of this run is whole")
        failed, passed = any(one.faults for one in verdicts), all(one.passed for one in verdicts)
        return Reference(
            extraction_id=self._store.extraction_id,
            status="failed" if failed else "passed" if passed else "unknown",
            engines=verdicts,
        )

    def _without(self, status: Literal["unknown", "off"], reason: str) -> Reference:
        return Reference.without(self._store.extraction_id, status, reason)

    def _known(self, record: Path, number: int) -> EngineReference | None:
        """What passed before, of at least `number` samples. A damaged record is none: the comparison is made
        again."""
        known = EngineReference.find(record)
        is_enough = known and known.passed and len(known.samples) >= number
        return known if known and is_enough and known.extraction_id == self._store.extraction_id else None

    def _keep(self, passed: EngineReference) -> None:
        record = EngineSamples(passed.versions, []).record(self._store)
        try:
            passed.write(record)
        except OSError as error:  # somebody else's store, or a full disk: this run has its own record
            say(f"reference: not kept in the store for other runs: {headline(error)}")

    def _reference_target(self, trust_remote_code: bool) -> ReferenceTarget:
        path = Path(self._target.path)
        return ReferenceTarget(
            path=path,
            trust_remote_code=trust_remote_code,
            stored_bytes=self._target.weights_bytes,
            layers=self._identity.layers,
            dtype=self._extraction.dtype,
            stored_dtype=self._extraction.stored_dtype,
            quantized=rounds_activations(read_model_config(path), self._extraction.engine_arguments),
        )

    def _engines(self) -> list[EngineSamples]:
        """By the engine that stored the first sample of a batch."""
        engines: dict[str, EngineSamples] = {}
        for batch, entry in sorted(BatchIndex.read(self._run.batches).batches.items()):
            left_out = {sample.key for sample in Gate.read(self._run.gate(batch)).left_out}
            lengths = self._file.lengths(entry.row_group)
            kept = [
                Candidate(key, tokens, entry.row_group)
                for key, tokens in lengths.items()
                if key not in left_out
            ]
            if not kept:
                continue
            sidecar = find_json(self._store.sidecar_path(kept[0].key)) or {}
            versions = {
                name: str(one) for name, one in sidecar.get("versions", {}).items() if name != "workflow"
            }
            engines.setdefault(hash_json(versions), EngineSamples(versions, [])).candidates.extend(kept)
        return list(engines.values())

    def _choose(self, engine: EngineSamples, number: int) -> list[StoredSample]:
        """The first whole samples beside those wanted: a damaged one is for validation to reject."""
        chosen: dict[str, StoredSample] = {}
        for start in wanted([one.tokens for one in engine.candidates], number):
            ordered = sorted(engine.candidates, key=lambda one: (one.tokens, one.key))
            for one in ordered[start:]:
                if one.key in chosen:
                    continue
                try:
                    chosen[one.key] = self._open(one)
                    break
                except SampleError as error:
                    say(f"reference: another sample is taken for {one.key}: {headline(error)}")
        return list(chosen.values())

    def _open(self, candidate: Candidate) -> StoredSample:
        sample = next(one for one in self._file.samples(candidate.row_group) if one.key == candidate.key)
        states = open_checked(sample, self._store, self._identity, self._target.hidden_size).states
        rows = min(LONGEST_ROWS, len(sample.token_ids))
        return StoredSample(sample.sample_id, sample.key, sample.token_ids, states, rows)


def wanted(lengths: Iterable[int], number: int) -> list[int]:
    """Places, in the order of their lengths, of at most `number` samples: from the shortest that is long
    enough to be judged by its rows (else the longest of all) to the one of median length."""
    ordered = sorted(lengths)
    long_enough = [place for place, length in enumerate(ordered) if length >= SHORTEST] or [len(ordered) - 1]
    first, middle = long_enough[0], long_enough[len(long_enough) // 2]
    steps = max(1, number - 1)
    return sorted({first + n * (middle - first) // steps for n in range(number)})


def rounds_activations(config: JsonObject, engine_arguments: JsonObject) -> bool:
    """Whether the engine computes with activations or a cache of 8 bits."""
    if engine_arguments.get("quantization") or "fp8" in str(engine_arguments.get("kv_cache_dtype")):
        return True
    quantization = quantization_of(config) or {}
    groups = (quantization.get("config_groups") or {}).values()
    return (
        quantization.get("quant_method") in ROUNDING_METHODS
        or bool(quantization.get("kv_cache_scheme"))
        or any(group.get("input_activations") for group in groups)
    )


def _named(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items()) or "an unknown engine"
