"""The paths of a run's files: below `results/<run>` and `logs/<run>`. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RunPaths:
    """Every file of a run by its name. `results` is the directory results/<run>."""

    results: Path

    @classmethod
    def of_run(cls, run: str) -> RunPaths:
        """Relative to the working directory, as Snakemake and its jobs see them."""
        return cls(Path("results") / run)

    @property
    def logs(self) -> Path:
        """logs/<run>, beside results/<run>."""
        return self.results.parent.parent / "logs" / self.results.name

    @property
    def configs(self) -> Path:
        """The sections of the configuration that rules read, one file a choice of sections."""
        return self.results / "config"

    @property
    def whole_config(self) -> Path:
        """The configuration of the newest call, defaults included."""
        return self.configs / "whole.json"

    @property
    def target(self) -> Path:
        return self.results / "target.json"

    @property
    def tokens(self) -> Path:
        return self.results / "tokens"

    @property
    def samples(self) -> Path:
        return self.tokens / "samples.parquet"

    @property
    def batches(self) -> Path:
        """What tokenization made; it seals the other files of `tokens`."""
        return self.tokens / "batches.json"

    @property
    def frequencies(self) -> Path:
        return self.tokens / "token_frequencies.npy"

    @property
    def row_ledger(self) -> Path:
        """What became of every input row."""
        return self.tokens / "ledger.parquet"

    @property
    def samples_page(self) -> Path:
        return self.tokens / "samples.html"

    @property
    def report(self) -> Path:
        """The compatibility report; it exists only if nothing fails."""
        return self.results / "compatibility" / "report.json"

    @property
    def failed_report(self) -> Path:
        return self.results / "compatibility" / "report.failed.json"

    @property
    def before_extraction(self) -> tuple[Path, ...]:
        """The files of all stages before the first pass."""
        return (
            self.target,
            self.samples,
            self.batches,
            self.row_ledger,
            self.frequencies,
            self.samples_page,
            self.report,
            self.report.with_suffix(".html"),
        )

    @property
    def prompts(self) -> Path:
        """What the target is asked, where it answers itself (generation.responses: target)."""
        return self.results / "prompts" / "prompts.parquet"

    @property
    def prompt_batches(self) -> Path:
        """The batches of prompts; it seals the file of them."""
        return self.results / "prompts" / "batches.json"

    @property
    def generation(self) -> Path:
        """See `eagle3_data.passes.paths`."""
        return self.results / "generation"

    @property
    def generation_report(self) -> Path:
        """The compatibility report before the first load; it exists only if nothing fails."""
        return self.generation / "report.json"

    @property
    def answers(self) -> Path:
        """Exists once every conversation of every batch is answered."""
        return self.generation / "answers.json"

    def generation_gate(self, batch: str) -> Path:
        """Exists if and only if every conversation of the batch is answered."""
        return self.generation / "batches" / f"{batch}.json"

    @property
    def extraction(self) -> Path:
        """See `eagle3_data.passes.paths`."""
        return self.results / "extraction"

    def gate(self, batch: str) -> Path:
        """Exists if and only if the batch is complete."""
        return self.extraction / "batches" / f"{batch}.json"

    @property
    def validation(self) -> Path:
        return self.results / "validation"

    def validation_ledger(self, number: str, extracted: str) -> Path:
        """What one job validated of the pass and stripe `extracted`: the only declared output of the rule
        `validate_pass`."""
        return self.validation / "passes" / number / f"{extracted}.json"

    def validation_ledgers(self) -> list[Path]:
        return sorted(self.validation.glob("passes/[0-9]*/[0-9]*/*.json"))

    def validation_record(self, batch: str) -> Path:
        """The verdict of a batch, whatever it is, as the job wrote it."""
        return self.validation / "records" / f"{batch}.json"

    def validation_table(self, batch: str) -> Path:
        """What was measured of each sample and slot of a batch."""
        return self.validation / "tables" / f"{batch}.parquet"

    def verdict(self, batch: str) -> Path:
        """Exists if and only if no sample of the batch is rejected."""
        return self.validation / f"{batch}.json"

    def rejected(self, batch: str) -> Path:
        """Keys that validation rejected, for the next pass to quarantine."""
        return self.validation / "rejected" / f"{batch}.json"

    @property
    def reference(self) -> Path:
        """Exists if and only if the reference found nothing wrong; it may say that it proved nothing."""
        return self.results / "reference.json"

    @property
    def failed_reference(self) -> Path:
        return self.results / "reference.failed.json"

    @property
    def training_set(self) -> Path:
        return self.results / "training_set"
