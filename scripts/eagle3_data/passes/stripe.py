"""One stripe of a pass, whatever the pass makes: from the lease to the ledger.

While it holds its lease, the supervisor finds out what is missing, feeds it to an engine that is loaded once
and only if needed (`eagle3_data.passes.feeding`), and commits what comes back. Whatever happens to the
engine, the ledger is written. A kind of pass is a subclass: where its results are kept, and what it asks of
its engine.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from eagle3_data.compatibility.client.versions import VLLM_DISTRIBUTIONS, installed_version
from eagle3_data.config import Compatibility, Extraction, Target, Tokenization, load_section
from eagle3_data.engines.base import Ready, Work
from eagle3_data.engines.process import EngineProcess
from eagle3_data.errors import EngineError
from eagle3_data.log import say, warn
from eagle3_data.passes.batch_records import FailureFacts
from eagle3_data.passes.commits import Committer
from eagle3_data.passes.feeding import Feeding
from eagle3_data.passes.flight import Flight
from eagle3_data.passes.lease import Lease, PassProgress
from eagle3_data.passes.ledger import Ledger, PassFacts
from eagle3_data.passes.outcomes import Outcomes
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.planning import stripe_of
from eagle3_data.passes.stopping import Stop
from eagle3_data.progress import Progress
from eagle3_data.records.batch_index import BatchIndex, SampleName
from eagle3_data.records.failures import Failure, describe_situation
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.system.devices import take_own_devices
from eagle3_data.system.environment import shown_variables
from eagle3_data.target import TargetDescription
from eagle3_data.text import counted
from eagle3_data.version import workflow_version

COMMIT_THREADS = 8
"""A step's samples end together, at most so many of 2,048 tokens on a large GPU."""


class Keyed(Protocol):
    @property
    def key(self) -> str: ...


Item = TypeVar("Item", bound=Keyed)


@dataclass(frozen=True)
class StripeJob:
    """The input of a stripe of any pass."""

    target: Target
    tokenization: Tokenization
    extraction: Extraction
    compatibility: Compatibility
    description: TargetDescription
    results: Path
    number: str
    stripe: int
    engine_log: Path

    @classmethod
    def of_call(cls, arguments: argparse.Namespace, **sections: Any) -> Self:
        """The job of a script called with the arguments of `stripe_arguments`; `sections` are those of the
        configuration that only this kind of pass has."""
        return cls(
            target=load_section(arguments.config, "target", Target),
            tokenization=load_section(arguments.config, "tokenization", Tokenization),
            extraction=load_section(arguments.config, "extraction", Extraction),
            compatibility=load_section(arguments.config, "compatibility", Compatibility),
            description=TargetDescription.read(RunPaths(arguments.results).target),
            results=arguments.results,
            number=arguments.pass_number,
            stripe=arguments.stripe,
            engine_log=arguments.engine_log,
            **sections,
        )

    @property
    def writer(self) -> str:
        """A name for what this job writes into a store, which runs of one name may share."""
        return f"{self.results.name}-{self.number}-{self.stripe}-{socket.gethostname()}-{os.getpid()}"


def stripe_arguments(description: str | None, section: str) -> argparse.Namespace:
    """What a script that runs one stripe is called with; `section` is the one that only its kind of pass
    reads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--config",
        required=True,
        help=f"config file with sections target, tokenization, extraction, compatibility, {section}",
    )
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--pass-number", required=True, help="three digits")
    parser.add_argument("--stripe", required=True, type=int)
    parser.add_argument("--engine-log", required=True, type=Path, help="file for the engine's own output")
    parser.add_argument("--ledger", required=True, type=Path, help="ledger to write (JSON)")
    return parser.parse_args()


class StripeRun(ABC):
    """The supervisor of one stripe. `working` names the phase in which the engine works."""

    working = "extracting"

    def __init__(
        self, job: StripeJob, ledger: Path, identity: str, paths: PassPaths, index: Path, store: Path
    ) -> None:
        """`identity` is the id under which results are kept in directory `store`; `index` names the batches
        of the file of samples beside it."""
        self._job, self._ledger, self._paths = job, ledger, paths
        extraction = job.extraction
        self._batches = BatchIndex.read(index).batches
        self._failure: Failure | None = None
        self._ready: Ready | None = None
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
            extraction_id=identity,
            engine_log=str(job.engine_log),
            command=command,
        )
        self._failure_facts = FailureFacts(versions=_package_versions(), retry=command)
        self._outcomes = Outcomes(
            self._paths, job.number, self._facts, self._failure_facts, extraction.max_failed_fraction
        )
        self._stop = Stop(store, extraction.disk_reserve_gib * 2**30, extraction.stop_before_end_s)
        self._lease = Lease(self._paths.running, job.stripe, extraction.jobs, self._describe, self._on_loss)

    # ---- what a kind of pass is

    @abstractmethod
    def _in_use(self) -> AbstractContextManager[None]:
        """Holds the store, so that nothing is deleted that the pass relies on."""

    @abstractmethod
    def _prepare(self) -> None:
        """What to do first once the lease is held."""

    @abstractmethod
    def _samples(self) -> SampleFile:
        """The file of the batches' samples."""

    @abstractmethod
    def _stored(self) -> set[str]:
        """The keys in the store."""

    @abstractmethod
    def _fingerprint(self, samples: str) -> str:
        """The fingerprint of a batch, by that of its samples."""

    @abstractmethod
    def _work(self) -> None:
        """Bring what is missing into the store."""

    @abstractmethod
    def _described(self, ledger: Ledger) -> Ledger:
        """The ledger with what only this kind of pass has to say."""

    # ---- from the lease to the ledger

    def run(self) -> None:
        self._stop.listen()
        with self._in_use():
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
        self._prepare()
        self._missing = self._survey()
        for ledger in self._paths.read_ledgers():
            self._crashes.update(ledger.crashes)
        if not self._missing:
            say("all samples of this stripe are in the store already; no need to load the model")
        elif not self._stop.is_near():
            self._work()

    def _on_loss(self) -> None:
        """Another pass took over because this one stalled. It does the rest, so there is nothing to wait
        for."""
        warn("this pass stalled and lost its lease to another; stopping")
        message = (
            "the pass stalled and lost its lease to another, which does the rest; finished samples are kept"
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
        """Open every unfinished batch of the stripe; returns the number of samples that are missing."""
        missing_samples = 0
        stored, samples = self._stored(), self._samples()
        for batch in self._own_batches():
            entry = self._batches[batch]
            names = samples.names(entry.row_group)
            missing = {name.key for name in names if name.key not in stored}
            fingerprint = self._fingerprint(entry.fingerprint)
            if missing:
                samples.check_keys(entry.row_group)  # now, not after the model is loaded
                self._outcomes.open_batch(batch, fingerprint, names, missing)
            else:
                self._known(batch, fingerprint, names)
            missing_samples += len(missing)
        return missing_samples

    def _known(self, batch: str, fingerprint: str, names: Sequence[SampleName]) -> None:
        """Book a batch that is complete in the store: an earlier pass recorded it, or a look into the store
        does."""
        self._outcomes.known_complete(batch, fingerprint, names)

    def _waiting(self, read: Callable[[int], Iterable[Item]]) -> Iterator[Item]:
        """What is not in the store, batch after batch, each key once; `read` gives all of a row group."""
        met: set[str] = set()
        for batch in self._outcomes.open_batches():
            for one in read(self._batches[batch].row_group):
                if self._outcomes.is_waiting(one.key) and one.key not in met:
                    met.add(one.key)
                    yield one

    # ---- the engine's work

    def _feed(
        self,
        start_engine: Callable[[], EngineProcess],
        requests: Iterator[Work | None],
        committer: Committer,
        in_flight: int,
        progress: str,
        in_groups: bool = False,
    ) -> None:
        """Feed `requests` to an engine, at most `in_flight` (by their `cost`) at a time; `progress` names
        the work; `in_groups`: see `Feeding`."""
        self._phase = "loading"
        with (
            ThreadPoolExecutor(COMMIT_THREADS, "commit") as pool,
            Progress(progress, "samples", self._missing) as bar,
        ):
            flight = Flight(committer, pool, self._outcomes, bar)

            def at_end(engine: EngineProcess) -> None:
                bar.end()
                self._at_end(engine)

            feeding = Feeding(
                start_engine,
                self._job.extraction,
                requests,
                flight,
                self._stop,
                self._on_ready,
                self._crashes,
                in_flight,
                at_end,
                in_groups,
            )
            feeding.run()
        self._loads, self._failure, self._crashes = feeding.loads, feeding.failure, feeding.crashes
        if self._extracting_since is not None:
            self._extraction_s = feeding.ended_at - self._extracting_since

    def _at_end(self, engine: EngineProcess) -> None:  # noqa: B027  nothing, unless a kind of pass has something
        """What to do with an engine that has done all its work, before it is closed."""

    def _on_ready(self, ready: Ready) -> None:
        self._extracting_since = self._extracting_since or time.time()
        ready = replace(ready, versions={**ready.versions, "workflow": workflow_version()})
        self._ready, self._phase = ready, self.working
        self._failure_facts.versions.update(ready.versions)
        packages = ", ".join(f"{name} {version}" for name, version in ready.versions.items())
        say(
            f"model loaded in {ready.load_s:.1f} s, of which the import of the engine's packages took"
            f" {ready.import_s:.1f} s ({packages})"
        )

    # ---- the ledger

    def _write_ledger(self) -> None:
        job, outcomes, counts = self._job, self._outcomes, self._outcomes.counts()
        stored = self._stored() if self._crashes else set()
        ledger = Ledger(
            **vars(self._facts),
            stripes=job.extraction.jobs,
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
            failure=self._failure,
            crashes={key: number for key, number in self._crashes.items() if key not in stored},
            batches=outcomes.batches(),
        )
        self._described(ledger).write(self._ledger)
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
