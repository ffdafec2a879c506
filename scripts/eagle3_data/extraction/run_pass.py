"""One stripe of an extraction pass: the hidden states of every unfinished batch. Before the target is loaded,
the canary proves the engine (`eagle3_data.extraction.proof`)."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from eagle3_data.config import Validation
from eagle3_data.engines.base import EngineSettings, Ready, Request
from eagle3_data.engines.process import EngineProcess
from eagle3_data.extraction.committer import Expected, SampleProvenance, StatesCommitter
from eagle3_data.extraction.proof import Proof, kernels_not_covered, prove_devices, prove_engine, prove_target
from eagle3_data.extraction.rejection import Rejection
from eagle3_data.extraction.replay import Replaying, ReplaySettings, describe
from eagle3_data.findings import Finding
from eagle3_data.identity import ExtractionIdentity, identify_extraction
from eagle3_data.log import say, warn
from eagle3_data.passes.claims import Claims, share
from eagle3_data.passes.ledger import Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.stripe import StripeJob, StripeRun
from eagle3_data.records import write_json
from eagle3_data.records.replay import Replay
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import Sample, SampleFile
from eagle3_data.store import OWNER, Store
from eagle3_data.system.environment import shown_variables
from eagle3_data.system.processes import this_process
from eagle3_data.text import counted


@dataclass(frozen=True)
class PassJob(StripeJob):
    """The input of a stripe."""

    validation: Validation

    @cached_property
    def identity(self) -> ExtractionIdentity:
        return identify_extraction(self.description, self.extraction)

    def engine_settings(self, store: Store) -> EngineSettings:
        identity = self.identity
        return EngineSettings(
            engine=self.extraction.engine,
            model_path=self.description.path,
            layers=identity.layers,
            dtype=self.extraction.dtype,
            tensor_parallel=self.extraction.tensor_parallel,
            max_length=self.tokenization.max_length,
            trust_remote_code=self.target.trust_remote_code,
            states_root=str(store.directory.resolve()),
            provenance={
                "extraction_id": identity.extraction_id,
                "layers": " ".join(map(str, identity.layers)),
                "target_fingerprint": identity.fingerprint,
                "capture_version": str(identity.capture_version),
            },
            arguments=dict(self.extraction.engine_arguments),
            storage_dtype=self.extraction.storage_dtype,
        )


def run_pass(job: PassJob, ledger: Path) -> None:
    """Run the stripe and write its ledger. Sample, engine and compatibility failures are recorded there,
    never raised."""
    PassRun(job, ledger).run()


class PassRun(StripeRun):
    def __init__(self, job: PassJob, ledger: Path) -> None:
        self._pass, identity = job, job.identity
        self._store = Store(job.extraction.store, identity.extraction_id)
        self._run_paths = RunPaths(job.results)
        self._sample_file = SampleFile(self._run_paths.samples)
        self._proof = Proof(holds=False)
        self._canary: list[Finding] = []
        self._replay: Replay | None = None
        self._store.prepare()
        super().__init__(
            job,
            ledger,
            identity.extraction_id,
            PassPaths(self._run_paths.extraction),
            self._run_paths.batches,
            self._store.directory,
        )
        self._rejection = Rejection(self._run_paths, self._store, identity, self._batches, self._stop.now)

    def _in_use(self) -> AbstractContextManager[None]:
        return self._store.in_use(self._stop.now)

    def _prepare(self) -> None:
        write_json(self._store.directory / "identity.json", asdict(self._pass.identity))
        if removed := self._store.clean_incoming():
            say(f"removed the unfinished files of {counted(removed, 'killed pass')}")
        for batch in self._own_batches():
            self._rejection.quarantine_rejected(batch)

    def _samples(self) -> SampleFile:
        return self._sample_file

    def _stored(self) -> set[str]:
        return self._store.keys()

    def _fingerprint(self, samples: str) -> str:
        return self._pass.identity.batch_fingerprint(samples)

    def _requests(self, incoming: Path) -> Iterator[Request]:
        """Samples that are not in the store, also not by another run meanwhile."""
        for sample in self._waiting(self._sample_file.samples):
            if not self._is_found(sample.key):
                path = (incoming / f"{sample.key}.safetensors").resolve()
                yield Request(sample.key, sample.token_ids, str(path))

    def _is_found(self, key: str) -> bool:
        """Whether another run has put the sample into the shared store meanwhile."""
        if found := self._store.holds(key):
            self._outcomes.found(key)
        return found

    # ---- extraction

    def _work(self) -> None:
        job, writer = self._pass, self._pass.writer
        incoming = self._store.open_incoming(writer, this_process())
        self._lease.renew_also(incoming / OWNER)
        say(
            f"{counted(self._missing, 'sample')} to extract from {job.description.path}, layers"
            f" {' '.join(map(str, job.identity.layers))}; engine output: {job.engine_log}"
        )
        claims = Claims(self._store, writer)
        try:
            if self._may_load(incoming / "canary"):
                self._extract(incoming, claims)
        finally:
            claims.release()
            shutil.rmtree(incoming, ignore_errors=True)

    def _extract(self, incoming: Path, claims: Claims) -> None:
        job = self._pass
        settings = job.engine_settings(self._store)
        self._replaying = self._prepare_replay(incoming)
        self._feed(
            lambda: EngineProcess(settings, job.engine_log),
            share(self._requests(incoming), claims, self._outcomes.is_waiting, self._is_found),
            self._committer(),
            job.extraction.in_flight_tokens,
            "extraction",
        )
        self._finish_replay()

    def _on_ready(self, ready: Ready) -> None:
        super()._on_ready(ready)
        assert self._ready is not None
        self._provenance |= {"versions": self._ready.versions, "kernels": list(ready.kernels)}
        self._canary = [*self._proof.findings, *kernels_not_covered(self._proof, ready.kernels)]

    def _may_load(self, work: Path) -> bool:
        """Whether the target, this job's devices and the canary allow loading the target."""
        job = self._pass
        proof = prove_target(job.description, self._run_paths.target)
        if proof.holds:
            proof = prove_devices(job.description, job.extraction, job.compatibility)
        if proof.holds and job.compatibility.canary != "off":
            self._phase = "canary"
            settings, verdicts = job.engine_settings(self._store), self._store.directory / "canary"
            proof = prove_engine(
                settings, job.compatibility.allow, verdicts, work, job.engine_log, self._stop.now
            )
        self._proof, self._canary, self._failure = proof, list(proof.findings), proof.failure
        return proof.holds

    def _committer(self) -> StatesCommitter:
        job = self._pass
        return StatesCommitter(self._store, self._expected, self._provenance, job.extraction.write_timeout_s)

    @property
    def _expected(self) -> Expected:
        job = self._pass
        return Expected(job.identity.layers, job.description.hidden_size, job.identity.stored_dtype)

    @cached_property
    def _provenance(self) -> SampleProvenance:
        """The provenance in the sidecars of this pass's samples."""
        job = self._pass
        return {
            "layers": list(job.identity.layers),
            "dtype": job.extraction.dtype,
            "stored_dtype": job.identity.stored_dtype,
            "tensor_parallel": job.extraction.tensor_parallel,
            "environment": shown_variables(),
            "pass": job.number,
        }

    # ---- the replay

    def _prepare_replay(self, incoming: Path) -> Replaying:
        job = self._pass
        settings = ReplaySettings(
            job.validation.replay_samples,
            f"{job.identity.extraction_id} {job.number} {job.stripe}",
            incoming,
            job.extraction.stall_timeout_s,
            job.extraction.write_timeout_s,
        )
        return Replaying(
            settings,
            self._store,
            self._expected,
            self._stop,
            lambda: self._outcomes.stored_lengths,
            self._find,
            partial(self._rejection.reject_pass, self._outcomes),
        )

    def _find(self, keys: Sequence[str]) -> list[Sample]:
        """The samples of some keys that this pass has stored."""
        found: dict[str, Sample] = {}
        for batch, stored in self._outcomes.stored_by_batch().items():
            if not set(keys).isdisjoint(stored):
                samples = self._sample_file.samples(self._batches[batch].row_group)
                found |= {sample.key: sample for sample in samples if sample.key in keys}
        return list(found.values())

    def _at_end(self, engine: EngineProcess) -> None:
        self._phase = "replaying"
        self._replaying.run(engine, self._ready.step_tokens if self._ready else None)

    def _finish_replay(self) -> None:
        end = self._stop.failure or self._failure
        self._replay = self._replaying.result(end.summary if end else "")
        if self._replay is None:
            return
        say(describe(self._replay))
        if differences := self._replaying.differences:
            replayed = len(self._replay.samples)
            self._failure = self._rejection.take_back(self._outcomes, differences, replayed)
            self._stop.failure = self._failure  # outweighs that the walltime ends
            warn(self._failure.render())

    # ---- the ledger

    def _described(self, ledger: Ledger) -> Ledger:
        extraction = self._pass.extraction
        requested = extraction.layers
        return replace(
            ledger,
            layers=list(self._pass.identity.layers),
            requested_layers=None if requested is None else list(requested),
            layer_convention=extraction.layer_convention,
            canary=self._canary,
            replay=self._replay,
        )
