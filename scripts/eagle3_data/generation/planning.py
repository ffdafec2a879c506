"""What is answered and what the next generation pass must answer, computed when Snakemake reads the workflow.
No torch, no vLLM."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from eagle3_data.config import Config
from eagle3_data.errors import Eagle3DataError
from eagle3_data.findings import Findings
from eagle3_data.generation.collection import AnsweredBatches
from eagle3_data.generation.identity import GenerationIdentity, identify_generation
from eagle3_data.generation.store import GenerationStore
from eagle3_data.passes.forecast import SUPERVISOR_MB, WORKER_MB, Pace, walltime_min
from eagle3_data.passes.ledger import Gate, Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.planning import BatchesView, PassPlan
from eagle3_data.records import Record
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.target import TargetDescription


class GenerationPlan(PassPlan):
    def __init__(self, config: Config, run: RunPaths) -> None:
        super().__init__(run, PassPaths(run.generation))
        self._config = config

    def generation_id(self) -> str:
        """Of what the configuration asks for now; empty if the dataset answers, or the target is not
        described."""
        config = self._config
        if not config.generation.is_wanted:
            return ""
        try:
            description = TargetDescription.read(self._run.target)
        except Eagle3DataError:
            return ""
        return identify_generation(
            description, config.tokenization, config.extraction, config.generation
        ).generation_id

    def pass_memory_mb(self) -> int:
        """Host memory to ask for in one job of a pass."""
        return SUPERVISOR_MB + WORKER_MB * self._config.extraction.tensor_parallel

    def _files(self) -> tuple[Path, Path]:
        return self._run.prompt_batches, self._run.target

    def _look(self, batches_json: Path, target_json: Path) -> PromptsView:
        return PromptsView(self._config, batches_json, target_json)

    def _kinds(self) -> tuple[tuple[Path, type[Record]], ...]:
        return (
            (self._run.prompt_batches, BatchIndex),
            (self._run.generation_report, Findings),
            (self._run.answers, AnsweredBatches),
            (self._paths.ledger("[0-9]*", "*"), Ledger),
            (self._run.generation_gate("*"), Gate),
        )


class PromptsView(BatchesView):
    def __init__(self, config: Config, batches_json: Path, target_json: Path) -> None:
        super().__init__(config.extraction, batches_json, target_json)
        self._config = config
        self._identity = identify_generation(
            self._target, config.tokenization, config.extraction, config.generation
        )

    @property
    def identity(self) -> GenerationIdentity:
        return self._identity

    def pass_minutes(self, tokens: int, ledgers: Iterable[Ledger]) -> int:
        """`tokens` are those of the prompts. Before a pass has ended, every answer is taken to be as long as
        it may be."""
        same = [ledger for ledger in ledgers if ledger.extraction_id == self._identity.generation_id]
        samples = sum(entry.samples for entry in self.batches.values())
        done, generated = (
            sum(ledger.samples_extracted for ledger in same),
            sum(ledger.tokens_extracted for ledger in same),
        )
        per_sample = generated / done if done else self._config.generation.max_tokens
        share = tokens / max(1, sum(entry.tokens for entry in self.batches.values()))
        pace = Pace.assumed(self._target.weights_bytes).measured_by(same)
        expected = int(per_sample * samples * share)
        return walltime_min(expected, pace, self._extraction.stop_before_end_s)

    @cached_property
    def _keys(self) -> set[str]:
        return GenerationStore(self._config.generation.store, self._identity.generation_id).keys()
