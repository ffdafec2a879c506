"""One stripe of a pass: extracts every unfinished batch with one engine, which is loaded once and only if
needed.

While it holds its lease, the supervisor finds out what is missing, lets the canary prove the engine, and
feeds it the samples (`eagle3_data.passes.feeding`). Whatever happens to the engine, the ledger is written.
"""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from eagle3_data.compatibility.client.versions import VLLM_DISTRIBUTIONS, installed_version
from eagle3_data.config import Compatibility, Extraction, Target, Tokenization
from eagle3_data.engines.base import EngineSettings, Ready, Request
from eagle3_data.engines.process import EngineProcess
from eagle3_data.errors import EngineError
from eagle3_data.extraction.committer import Expected, SampleProvenance, StatesCommitter
from eagle3_data.extraction.proof import Proof, kernels_not_covered, prove_devices, prove_engine, prove_target
from eagle3_data.findings import Finding
from eagle3_data.identity import ExtractionIdentity, identify_extraction
from eagle3_data.log import say, warn
from eagle3_data.passes.batch_records import FailureFacts
from eagle3_data.passes.claims import Claims, share
from eagle3_data.passes.feeding import Feeding
from eagle3_data.passes.flight import Flight
from eagle3_data.passes.lease import Lease, PassProgress
from eagle3_data.passes.ledger import Ledger, PassFacts
from eagle3_data.passes.outcomes import Outcomes
from eagle3_data.passes.paths import ExtractionPaths
from eagle3_data.passes.planning import stripe_of
from eagle3_data.passes.stopping import Stop
from eagle3_data.progress import Progress
from eagle3_data.records import write_json
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.failures import Failure, describe_situation
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import OWNER, Store
from eagle3_data.system.devices import take_own_devices
from eagle3_data.system.environment import shown_variables
from eagle3_data.system.processes import this_process
from eagle3_data.target import TargetDescription
from eagle3_data.text import counted
from eagle3_data.validation.verdict import BatchVerdict
from eagle3_data.version import workflow_version

COMMIT_THREADS = 4


@dataclass(frozen=True)
class PassJob:
    """The input of a stripe."""

    target: Target
    tokenization: Tokenization
    extraction: Extraction
    compatibility: Compatibility
    description: TargetDescription
    results: Path
    number: str
    stripe: int
    engine_log: Path

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


class PassRun:
    def __init__(self, job: PassJob, ledger: Path) -> None:
        self._job, self._ledger = job, ledger
        extraction, identity = job.extraction, job.identity
        self._store = Store(extraction.store, identity.extraction_id)
        self._run_paths = RunPaths(job.results)
        self._paths = ExtractionPaths(self._run_paths.extraction)
        self._sample_file = SampleFile(self._run_paths.samples)
        self._batches = BatchIndex.read(self._run_paths.batches).batches
        self._failure: Failure | None = None
        self._ready: Ready | None = None
        self._proof = Proof(holds=False)
        self._canary: list[Finding] = []
        self._phase = "surveying"
        self._loads, self._missing, self._extraction_s, self._lease_wait_s = 0, 0, 0.0, 0.0
        self._crashes: dict[str, int] = {}
        """By sample key, how many engines have died with the sample, in all passes so far."""
        self._started_at = time.time()
        self._extracting_since: float | None = None
        command = os.environ.get("EAGLE3_DATA_COMMAND")
        self._facts = PassFacts(
            number=job.number,
            stripe=job.stripe,
            extraction_id=identity.extraction_id,
            engine_log=str(job.engine_log),
            command=command,
        )
        self._failure_facts = FailureFacts(versions=_package_versions(), retry=command)
        self._outcomes = Outcomes(
            self._paths, job.number, self._facts, self._failure_facts, extraction.max_failed_fraction
        )
        self._store.prepare()
        self._stop = Stop(
            self._store.directory, extraction.disk_reserve_gib * 2**30, extraction.stop_before_end_s
        )
        self._lease = Lease(self._paths.running, job.stripe, extraction.jobs, self._describe, self._on_loss)

    def run(self) -> None:
        self._stop.listen()
        with self._store.in_use(self._stop.now):
            self._run()

    def _run(self) -> None:
        take_own_devices(self._job.stripe, self._job.extraction.jobs, self._job.extraction.tensor_parallel)
        asked_at = time.monotonic()
        acquired = not self._stop.is_near() and self._lease.acquire(self._stop.now)
        self._lease_wait_s = time.monotonic() - asked_at
        if acquired:
            try:
                self._run_alone()
            finally:
                self._lease.release()
        else:
            self._survey()
        self._failure = self._stop.failure or self._failure
        self._outcomes.finish(self._failure)
        self._write_ledger()

    def _run_alone(self) -> None:
        write_json(self._store.directory / "identity.json", asdict(self._job.identity))
        if removed := self._store.clean_incoming():
            say(f"removed the unfinished files of {counted(removed, 'killed pass')}")
        for batch in self._own_batches():
            self._quarantine_rejected(batch)
        self._missing = self._survey()
        for ledger in self._paths.read_ledgers():
            self._crashes.update(ledger.crashes)
        if not self._missing:
            say("all samples of this stripe are in the store already; no need to load the model")
        elif not self._stop.is_near():
            self._extract()

    def _on_loss(self) -> None:
        """Another pass took over because this one stalled. It extracts the rest, so there is nothing to wait
        for."""
        warn("this pass stalled and lost its lease to another; stopping")
        message = (
            "the pass stalled and lost its lease to another, which extracts the rest; finished samples are"
            " kept"
        )
        self._stop.failure = self._stop.failure or describe_situation(EngineError, message)
        self._stop.now.set()

    def _describe(self) -> PassProgress:
        """The progress of this pass, for its lease."""
        outcomes = self._outcomes
        return PassProgress(
            **vars(self._facts),
            phase=self._phase,
            started_at=self._started_at,
            updated_at=time.time(),
            extracting_since=self._extracting_since,
            to_extract=self._missing - outcomes.found_in_store,
            extracted=outcomes.extracted,
            failed=outcomes.failures,
            tokens=outcomes.tokens,
        )

    # ---- what there is to do

    def _own_batches(self) -> list[str]:
        return [
            batch
            for batch in sorted(self._batches)
            if stripe_of(batch, self._job.extraction.jobs) == self._job.stripe
        ]

    def _survey(self) -> int:
        """Open every unfinished batch of the stripe; returns the number of samples to extract."""
        missing_samples = 0
        stored = self._store.keys()
        for batch in self._own_batches():
            entry = self._batches[batch]
            names = self._sample_file.names(entry.row_group)
            missing = {name.key for name in names if name.key not in stored}
            fingerprint = self._job.identity.batch_fingerprint(entry.fingerprint)
            if missing:
                self._sample_file.check_keys(entry.row_group)  # now, not after the model is loaded
                self._outcomes.open_batch(batch, fingerprint, names, missing)
            else:  # an earlier pass recorded it, or `find_stored_batches` does
                self._outcomes.known_complete(batch, fingerprint, names)
            missing_samples += len(missing)
        return missing_samples

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

    def _extract(self) -> None:
        job = self._job
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
                self._feed(incoming, claims)
        finally:
            claims.release()
            shutil.rmtree(incoming, ignore_errors=True)

    def _feed(self, incoming: Path, claims: Claims) -> None:
        job = self._job
        settings = job.engine_settings(self._store)
        self._phase = "loading"
        with (
            ThreadPoolExecutor(COMMIT_THREADS, "commit") as pool,
            Progress("extraction", "samples", self._missing) as progress,
        ):
            flight = Flight(self._committer(), pool, self._outcomes, progress)
            requests = share(self._requests(incoming), claims, self._outcomes.is_waiting, self._is_found)
            feeding = Feeding(
                lambda: EngineProcess(settings, job.engine_log),
                job.extraction,
                requests,
                flight,
                self._stop,
                self._on_ready,
                self._crashes,
            )
            feeding.run()
        self._loads, self._failure, self._crashes = feeding.loads, feeding.failure, feeding.crashes
        if self._extracting_since is not None:
            self._extraction_s = feeding.ended_at - self._extracting_since

    def _on_ready(self, ready: Ready) -> None:
        self._extracting_since = self._extracting_since or time.time()
        ready = replace(ready, versions={**ready.versions, "workflow": workflow_version()})
        self._ready, self._phase = ready, "extracting"
        self._failure_facts.versions.update(ready.versions)
        self._provenance |= {"versions": ready.versions, "kernels": list(ready.kernels)}
        self._canary = [*self._proof.findings, *kernels_not_covered(self._proof, ready.kernels)]
        say(
            f"model loaded in {ready.load_s:.1f} s"
            f" ({', '.join(f'{name} {version}' for name, version in ready.versions.items())})"
        )

    def _may_load(self, work: Path) -> bool:
        """Whether the target, this job's devices and the canary allow loading the target."""
        job = self._job
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
        job = self._job
        expected = Expected(job.identity.layers, job.description.hidden_size, job.extraction.dtype)
        return StatesCommitter(self._store, expected, self._provenance, job.extraction.write_timeout_s)

    @cached_property
    def _provenance(self) -> SampleProvenance:
        """The provenance in the sidecars of this pass's samples."""
        job = self._job
        return {
            "layers": list(job.identity.layers),
            "dtype": job.extraction.dtype,
            "tensor_parallel": job.extraction.tensor_parallel,
            "environment": shown_variables(),
            "pass": job.number,
        }

    # ---- the ledger

    def _write_ledger(self) -> None:
        job, outcomes, counts = self._job, self._outcomes, self._outcomes.counts()
        requested = job.extraction.layers
        ledger = Ledger(
            **vars(self._facts),
            stripes=job.extraction.jobs,
            layers=list(job.identity.layers),
            requested_layers=None if requested is None else list(requested),
            layer_convention=job.extraction.layer_convention,
            target=job.description.path,
            target_resolved=os.path.realpath(job.description.path),
            host=socket.gethostname(),
            slurm_job_id=os.environ.get("SLURM_JOB_ID"),
            devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
            tensor_parallel=job.extraction.tensor_parallel,
            started_at=self._started_at,
            elapsed_s=time.time() - self._started_at,
            lease_wait_s=self._lease_wait_s,
            model_loads=self._loads,
            load_s=self._ready.load_s if self._ready else None,
            versions=self._ready.versions if self._ready else {},
            kernels=list(self._ready.kernels) if self._ready else [],
            environment=shown_variables(),
            extraction_s=self._extraction_s,
            samples_extracted=outcomes.extracted,
            tokens_extracted=outcomes.tokens,
            written_bytes=outcomes.size_bytes,
            canary=self._canary,
            failure=self._failure,
            crashes={key: number for key, number in self._crashes.items() if not self._store.holds(key)},
            batches=outcomes.batches(),
        )
        ledger.write(self._ledger)
        say(
            f"pass {job.number} stripe {job.stripe}: {counted(counts['complete'], 'batch')} complete,"
            f" {counts['failed']} failed, {counts['not_reached']} not reached"
        )


def _package_versions() -> dict[str, str | None]:
    """Versions of this workflow and of the packages it depends on most, from their metadata (without
    imports)."""
    names = {
        "vllm": VLLM_DISTRIBUTIONS,
        "torch": ("torch",),
        "transformers": ("transformers",),
        "snakemake": ("snakemake",),
    }
    installed = {
        name: str(found[1]) if (found := installed_version(*distributions)) else None
        for name, distributions in names.items()
    }
    return {**installed, "workflow": workflow_version()}
