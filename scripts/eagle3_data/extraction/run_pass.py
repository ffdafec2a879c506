"""One stripe of a pass: every unfinished batch through one engine, loaded once, and only if there is something to extract.

The supervisor feeds samples continuously across batches, bounded by `extraction.in_flight_tokens`, and commits finished
ones while the engine computes. Whatever happens to the engine, the ledger is written.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from eagle3_data.child import Child
from eagle3_data.cli import say
from eagle3_data.compatibility.versions import VLLM_DISTRIBUTIONS, installed_version
from eagle3_data.config import Compatibility, Extraction, Target, Tokenization
from eagle3_data.engines.base import EngineSettings, Extracted, Fatal, Ready, Rejected, Request
from eagle3_data.errors import CompatibilityError, EngineError, describe_situation, render_failure
from eagle3_data.extraction.committer import Committer, Expected
from eagle3_data.extraction.engine_log import with_root_cause
from eagle3_data.extraction.engine_process import EngineProcess
from eagle3_data.extraction.flight import Flight
from eagle3_data.extraction.identity import ExtractionIdentity, identify_extraction
from eagle3_data.extraction.outcomes import Outcomes, rejected_path
from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.extraction.planning import stripe_of
from eagle3_data.hashing import hash_json
from eagle3_data.progress import Progress
from eagle3_data.records import find_json, read_json, write_json
from eagle3_data.samples import SampleFile
from eagle3_data.store import Store
from eagle3_data.target import TargetDescription

COMMIT_THREADS = 4


@dataclass(frozen=True)
class PassJob:
    """What a stripe of a pass is given."""

    target: Target
    tokenization: Tokenization
    extraction: Extraction
    compatibility: Compatibility
    description: TargetDescription
    results: Path
    number: str
    stripe: int
    engine_log: Path

    @property
    def identity(self) -> ExtractionIdentity:
        return identify_extraction(self.description, self.extraction)

    def engine_settings(self, store: Store) -> EngineSettings:
        identity = self.identity
        return EngineSettings(
            engine=self.extraction.engine,
            model_path=self.target.path,
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
    """Run the stripe and write its ledger. Sample, engine and compatibility failures are recorded there, never raised."""
    PassRun(job, ledger).run()


class PassRun:
    def __init__(self, job: PassJob, ledger: Path) -> None:
        self._job, self._ledger = job, ledger
        self._store = Store(job.extraction.store, job.identity.extraction_id)
        self._paths = ExtractionPaths(job.results / "extraction")
        writer = f"{job.results.name}-{job.number}-{job.stripe}-{socket.gethostname()}-{os.getpid()}"  # runs of one name may share a store
        self._incoming = self._store.incoming(writer)
        self._sample_file = SampleFile(job.results / "tokens/samples.parquet")
        self._batches: dict[str, Any] = read_json(job.results / "tokens/batches.json")["batches"]
        self._failure: dict[str, Any] | None = None
        self._ready: Ready | None = None
        self._extraction_s = 0.0
        self._stop = threading.Event()
        self._engine_gone = threading.Event()
        facts = {"pass": job.number, "stripe": job.stripe, "extraction_id": job.identity.extraction_id, "engine_log": str(job.engine_log)}
        self._facts = facts
        self._outcomes = Outcomes(self._paths, job.number, job.stripe, facts)

    def run(self) -> None:
        started_at = time.time()
        signal.signal(signal.SIGTERM, self._stop_cleanly)
        signal.signal(signal.SIGINT, self._stop_cleanly)
        write_json(self._store.directory / "identity.json", asdict(self._job.identity))
        missing = self._survey()
        if missing:
            self._extract(missing)
        else:
            say("every sample of this stripe is in the store already; the model is not loaded")
        self._write_ledger(started_at)

    def _stop_cleanly(self, number: int, frame: FrameType | None) -> None:
        os.write(2, f"{signal.Signals(number).name} received: finished samples are kept, the rest is left for the next pass\n".encode())
        self._failure = self._failure or describe_situation(EngineError, f"the pass was stopped by {signal.Signals(number).name}")
        self._stop.set()

    # ---- what there is to do

    def _survey(self) -> int:
        """Open every unfinished batch of the stripe; returns the number of samples to extract."""
        missing_samples = 0
        for batch, entry in sorted(self._batches.items()):
            if stripe_of(batch, self._job.extraction.jobs) != self._job.stripe:
                continue
            self._quarantine_rejected(batch)
            names = self._sample_file.names(entry["row_group"])
            missing = {name.key for name in names if not self._store.holds(name.key)}
            fingerprint = self._job.identity.batch_fingerprint(entry["fingerprint"])
            if not missing and self._has_record(batch, fingerprint):
                self._outcomes.known_complete(batch, fingerprint, names)
            else:
                self._outcomes.open_batch(batch, fingerprint, names, missing)
            missing_samples += len(missing)
        return missing_samples

    def _has_record(self, batch: str, fingerprint: str) -> bool:
        record = find_json(self._paths.record(batch))
        return bool(record and record["fingerprint"] == fingerprint and self._paths.ledger(record["pass"], record["stripe"]).exists())

    def _quarantine_rejected(self, batch: str) -> None:
        path = rejected_path(self._job.results, batch)
        rejected = find_json(path)
        if rejected is None:
            return
        for key, reason in rejected["rejected"].items():
            self._store.quarantine(key, reason)
            say(f"batch {batch}: {key} was rejected by validation ({reason}); it is quarantined and extracted anew")
        path.unlink()
        self._paths.record(batch).unlink(missing_ok=True)

    def _requests(self, flight: Flight) -> Iterator[Request]:
        """Samples that are not in the store, batch after batch, each key once."""
        for batch in self._outcomes.open_batches():
            for sample in self._sample_file.samples(self._batches[batch]["row_group"]):
                if self._outcomes.is_waiting(sample.key) and sample.key not in flight.requests:
                    yield Request(sample.key, sample.token_ids, str((self._incoming / f"{sample.key}.safetensors").resolve()))

    # ---- extraction

    def _extract(self, missing: int) -> None:
        job = self._job
        self._incoming.mkdir(parents=True, exist_ok=True)
        say(f"{missing} samples to extract from {job.target.path}, layers {' '.join(map(str, job.identity.layers))}; engine output: {job.engine_log}")
        if job.compatibility.canary == "inline" and not self._canary_passes():
            return
        process = EngineProcess(job.engine_settings(self._store), job.engine_log)
        try:
            if self._wait_until_ready(process):
                started = time.monotonic()
                self._feed(process, missing)
                self._extraction_s = time.monotonic() - started
                process.close()
        finally:
            self._engine_gone.set()
            process.kill()
            shutil.rmtree(self._incoming, ignore_errors=True)

    def _canary_passes(self) -> bool:
        """Whether a tiny model of the target's architecture goes through the engine and comes out right (cached if so)."""
        settings = self._job.engine_settings(self._store)
        tested = {
            **asdict(settings),
            "model_path": "",
            "states_root": "",
            "packages": [str(installed_version(*names)) for names in (VLLM_DISTRIBUTIONS, ("torch",))],
        }
        verdict = self._store.directory / "canary" / f"{hash_json(tested)}.json"
        if verdict.exists():
            say(f"canary: passed before ({verdict})")
            return True
        say(f"canary: a tiny model of {self._job.description.architecture} goes through the engine first")
        arguments = [
            "--settings",
            json.dumps(asdict(settings)),
            "--work",
            str(self._incoming / "canary"),
            "--log",
            str(self._job.engine_log),
            "--output",
            str(verdict),
        ]
        child = Child("run_canary", arguments, self._job.engine_log)
        try:
            while child.process.poll() is None and not self._stop.wait(0.2):
                pass
        finally:
            child.kill()
        if self._stop.is_set() or verdict.exists():
            return verdict.exists()
        failed = find_json(verdict.with_suffix(".failed.json")) or {"findings": []}
        causes = tuple(f"{finding['id']}: {finding['title']}" for finding in failed["findings"]) or (f"the canary's process {child.end()}",)
        self._failure = describe_situation(
            CompatibilityError, f"the canary failed, so the target was not loaded: {causes[0]}; engine output: {self._job.engine_log}", causes=causes
        )
        say(render_failure(self._failure))
        return False

    def _wait_until_ready(self, process: EngineProcess) -> bool:
        while not self._stop.is_set():
            word = process.receive(1.0)
            if isinstance(word, Ready):
                self._ready = word
                say(f"model loaded in {word.load_s:.1f} s ({', '.join(f'{name} {version}' for name, version in word.versions.items())})")
                return True
            if isinstance(word, Fatal):
                self._failure = with_root_cause(word.failure, self._job.engine_log)
                say(f"the engine did not start\n{render_failure(self._failure)}")
                return False
        return False

    def _feed(self, process: EngineProcess, missing: int) -> None:
        """The supervisor's loop: keep the engine fed within the bound, hand finished samples to the committer, book them."""
        with ThreadPoolExecutor(COMMIT_THREADS, "commit") as pool, Progress("extraction", "samples", missing) as progress:
            flight = Flight(self._committer(), pool, self._outcomes, progress)
            requests = self._requests(flight)
            following = next(requests, None)
            while (following or flight.requests) and not self._stop.is_set():
                while following and flight.tokens + len(following.token_ids) <= self._job.extraction.in_flight_tokens:
                    flight.depart(following)
                    process.send(following)
                    following = next(requests, None)
                word = process.receive(0.01 if flight.committing else 0.5)
                if isinstance(word, Extracted | Rejected):
                    flight.arrive(word)
                elif isinstance(word, Fatal):
                    self._failure = with_root_cause(word.failure, self._job.engine_log)
                    say(f"the engine died\n{render_failure(self._failure)}")
                    break
                flight.book()
            self._engine_gone.set()
            flight.end(None if self._stop.is_set() else self._failure)

    def _committer(self) -> Committer:
        job = self._job
        expected = Expected(job.identity.layers, job.description.hidden_size, job.extraction.dtype)
        versions = self._ready.versions if self._ready else {}
        provenance = {
            "layers": list(job.identity.layers),
            "dtype": job.extraction.dtype,
            "tensor_parallel": job.extraction.tensor_parallel,
            "versions": versions,
            "pass": job.number,
        }
        return Committer(self._store, expected, provenance, job.extraction.write_timeout_s, self._engine_gone)

    # ---- the ledger

    def _write_ledger(self, started_at: float) -> None:
        job, outcomes, counts = self._job, self._outcomes, self._outcomes.counts()
        write_json(
            self._ledger,
            {
                **self._facts,
                "stripes": job.extraction.jobs,
                "layers": list(job.identity.layers),
                "requested_layers": job.extraction.layers,
                "layer_convention": job.extraction.layer_convention,
                "target": job.target.path,
                "host": socket.gethostname(),
                "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
                "devices": os.environ.get("CUDA_VISIBLE_DEVICES"),
                "started_at": started_at,
                "elapsed_s": time.time() - started_at,
                "model_loads": int(self._ready is not None),
                "load_s": self._ready.load_s if self._ready else None,
                "versions": self._ready.versions if self._ready else {},
                "extraction_s": self._extraction_s,
                "samples_extracted": outcomes.extracted,
                "tokens_extracted": outcomes.tokens,
                "written_bytes": outcomes.size_bytes,
                "failure": self._failure,
                "batches": outcomes.batches(),
            },
        )
        say(f"pass {job.number} stripe {job.stripe}: {counts['complete']} batches complete, {counts['failed']} failed, {counts['not_reached']} not reached")
