"""One stripe of an extraction pass: the hidden states of every unfinished batch. Before the target is loaded,
the canary proves the engine (`eagle3_data.extraction.proof`)."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from eagle3_data.engines.base import EngineSettings, Ready, Request
from eagle3_data.engines.process import EngineProcess
from eagle3_data.extraction.committer import Expected, SampleProvenance, StatesCommitter
from eagle3_data.extraction.proof import Proof, kernels_not_covered, prove_devices, prove_engine, prove_target
from eagle3_data.findings import Finding
from eagle3_data.identity import ExtractionIdentity, identify_extraction
from eagle3_data.log import say, warn
from eagle3_data.passes.claims import Claims, share
from eagle3_data.passes.ledger import Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.stripe import StripeJob, StripeRun
from eagle3_data.records import write_json
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import OWNER, Store
from eagle3_data.system.environment import shown_variables
from eagle3_data.system.processes import this_process
from eagle3_data.text import counted
from eagle3_data.validation.verdict import BatchVerdict


@dataclass(frozen=True)
class PassJob(StripeJob):
    """The input of a stripe."""

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
        self._store.prepare()
        super().__init__(
            job,
            ledger,
            identity.extraction_id,
            PassPaths(self._run_paths.extraction),
            self._run_paths.batches,
            self._store.directory,
        )

    def _in_use(self) -> AbstractContextManager[None]:
        return self._store.in_use(self._stop.now)

    def _prepare(self) -> None:
        write_json(self._store.directory / "identity.json", asdict(self._pass.identity))
        if removed := self._store.clean_incoming():
            say(f"removed the unfinished files of {counted(removed, 'killed pass')}")
        for batch in self._own_batches():
            self._quarantine_rejected(batch)

    def _samples(self) -> SampleFile:
        return self._sample_file

    def _stored(self) -> set[str]:
        return self._store.keys()

    def _fingerprint(self, samples: str) -> str:
        return self._pass.identity.batch_fingerprint(samples)

    def _quarantine_rejected(self, batch: str) -> None:
        path = self._run_paths.rejected(batch)
        verdict = BatchVerdict.find(path)
        if verdict is None:
            return
        for key, reason in verdict.rejected.items():
            self._store.quarantine(key, reason)
            warn(
                f"batch {batch}: validation rejected {key} ({reason}); it is quarantined and extracted again"
            )
        path.unlink()
        self._paths.record(batch).unlink(missing_ok=True)

    def _requests(self, incoming: Path) -> Iterator[Request]:
        """Samples that are not in the store, batch after batch, each key once."""
        met: set[str] = set()
        for batch in self._outcomes.open_batches():
            for sample in self._sample_file.samples(self._batches[batch].row_group):
                if not self._outcomes.is_waiting(sample.key) or sample.key in met:
                    continue
                if not self._is_found(sample.key):
                    met.add(sample.key)
                    path = (incoming / f"{sample.key}.safetensors").resolve()
                    yield Request(sample.key, sample.token_ids, str(path))

    def _is_found(self, key: str) -> bool:
        """Whether another run has put the sample into the shared store meanwhile."""
        if found := self._store.holds(key):
            self._outcomes.found(key)
        return found

    # ---- extraction

    def _work(self) -> None:
        job = self._pass
        writer = (  # runs of one name may share a store
            f"{job.results.name}-{job.number}-{job.stripe}-{socket.gethostname()}-{os.getpid()}"
        )
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
        self._feed(
            lambda: EngineProcess(settings, job.engine_log),
            share(self._requests(incoming), claims, self._outcomes.is_waiting, self._is_found),
            self._committer(),
            job.extraction.in_flight_tokens,
            "extraction",
        )

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
        expected = Expected(job.identity.layers, job.description.hidden_size, job.extraction.dtype)
        return StatesCommitter(self._store, expected, self._provenance, job.extraction.write_timeout_s)

    @cached_property
    def _provenance(self) -> SampleProvenance:
        """The provenance in the sidecars of this pass's samples."""
        job = self._pass
        return {
            "layers": list(job.identity.layers),
            "dtype": job.extraction.dtype,
            "tensor_parallel": job.extraction.tensor_parallel,
            "environment": shown_variables(),
            "pass": job.number,
        }

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
        )
