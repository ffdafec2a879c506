"""One stripe of a generation pass: the target answers every unfinished batch of questions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from eagle3_data.config import Generation
from eagle3_data.engines.process import EngineProcess
from eagle3_data.errors import NO_ROOM, EngineError
from eagle3_data.extraction.proof import prove_devices, prove_target
from eagle3_data.generation.answers import Answered, Answers, Question
from eagle3_data.generation.engine import GeneratorSettings
from eagle3_data.generation.identity import GenerationIdentity, engine_arguments, identify_generation
from eagle3_data.generation.prompts import PromptFile
from eagle3_data.generation.store import GenerationStore, Journal
from eagle3_data.log import say, warn
from eagle3_data.passes.commits import Kept
from eagle3_data.passes.ledger import Ledger
from eagle3_data.passes.outcomes import is_recorded
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.stripe import StripeJob, StripeRun
from eagle3_data.records import write_json
from eagle3_data.records.batch_index import BatchIndex, SampleName
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import SampleFile
from eagle3_data.store import OWNER
from eagle3_data.system.processes import this_process
from eagle3_data.text import counted


@dataclass(frozen=True)
class GenerationJob(StripeJob):
    """The input of a stripe."""

    generation: Generation

    @cached_property
    def identity(self) -> GenerationIdentity:
        return identify_generation(self.description, self.tokenization, self.extraction, self.generation)

    def engine_settings(self, stop_ids: Sequence[int]) -> GeneratorSettings:
        generation = self.generation
        return GeneratorSettings(
            engine=generation.engine,
            model_path=self.description.path,
            dtype=self.extraction.dtype,
            tensor_parallel=self.extraction.tensor_parallel,
            max_length=self.tokenization.max_length,
            trust_remote_code=self.target.trust_remote_code,
            max_tokens=generation.max_tokens,
            temperature=generation.temperature,
            top_p=generation.top_p,
            top_k=generation.top_k,
            seed=generation.seed,
            stop_ids=tuple(stop_ids),
            description=self.description,
            target=self.target,
            tokenization=self.tokenization,
            arguments=engine_arguments(self.extraction, generation),
        )


class AnswerCommitter:
    """Commits the answers of one pass, and counts how they ended."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self.endings: Counter[str] = Counter()

    def commit(self, request: Question, result: Answered, engine_gone: threading.Event) -> Kept | None:
        answers = result.answers
        check(request, answers)
        size = self._journal.add(request.key, answers)
        with self._lock:
            self.endings.update(turn.finish for turn in answers.turns)
            self.endings["looping"] += sum(turn.loops for turn in answers.turns)
        return Kept(answers.tokens, size)


def check(request: Question, answers: Answers) -> None:
    """Raises EngineError where the engine answered something else than it was asked."""
    turns = answers.turns
    if not turns or turns[0].kept or turns[0].added != request.token_ids:
        raise EngineError("the engine answered another prompt than the one it was given")
    if any(not turn.answer for turn in turns):
        raise EngineError("the engine ended an answer without a single token")


class GenerationRun(StripeRun):
    working = "generating"

    def __init__(self, job: GenerationJob, ledger: Path) -> None:
        self._pass = job
        self._store = GenerationStore(job.generation.store, job.identity.generation_id)
        self._store.prepare()
        self._run_paths = RunPaths(job.results)
        self._prompts = PromptFile(self._run_paths.prompts)
        self._endings: Counter[str] = Counter()
        super().__init__(
            job,
            ledger,
            job.identity.generation_id,
            PassPaths(self._run_paths.generation),
            self._run_paths.prompt_batches,
            self._store.directory,
        )

    def _in_use(self) -> AbstractContextManager[None]:
        return self._store.in_use(self._stop.now)

    def _prepare(self) -> None:
        write_json(self._store.directory / "identity.json", asdict(self._pass.identity))
        if sealed := self._store.seal_abandoned():
            say(f"kept the answers of {counted(sealed, 'killed pass')}")

    def _samples(self) -> SampleFile:
        return self._prompts

    def _stored(self) -> set[str]:
        return self._store.keys()

    def _fingerprint(self, samples: str) -> str:
        return self._pass.identity.batch_fingerprint(samples)

    def _known(self, batch: str, fingerprint: str, names: Sequence[SampleName]) -> None:
        if is_recorded(self._paths, batch, fingerprint, self._job.number):
            super()._known(batch, fingerprint, names)
        else:  # another run answered it
            self._outcomes.open_batch(batch, fingerprint, names, set())

    def _work(self) -> None:
        job = self._pass
        for proof in (
            prove_target(job.description, self._run_paths.target),
            prove_devices(job.description, job.extraction, job.compatibility),
        ):
            if not proof.holds:
                self._failure = proof.failure
                return
        journal = self._store.open_journal(job.writer, this_process())
        self._lease.renew_also(journal.path.with_name(OWNER))
        say(
            f"{counted(self._missing, 'conversation')} to be answered by {job.description.path}; engine"
            f" output: {job.engine_log}"
        )
        committer = AnswerCommitter(journal)
        try:
            self._generate(committer)
        finally:
            self._seal(journal)
        self._endings = committer.endings

    def _seal(self, journal: Journal) -> None:
        """A journal that finds no room to become a shard holds the answers until the next pass seals it."""
        try:
            journal.close()
            self._store.seal(journal.path)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            warn(f"{self._store.directory} is full: the answers stay in {journal.path} until there is room")

    def _generate(self, committer: AnswerCommitter) -> None:
        job = self._pass
        stops = BatchIndex.read(self._run_paths.prompt_batches).tokenizer["stop_ids"]
        settings = job.engine_settings(stops)
        self._feed(
            lambda: EngineProcess(settings, job.engine_log),
            self._waiting(self._prompts.questions),
            committer,
            job.generation.in_flight,
            "generation",
            in_groups=True,
        )

    def _described(self, ledger: Ledger) -> Ledger:
        return replace(ledger, answers=dict(self._endings))
