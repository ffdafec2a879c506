"""How far the target is with its answers. Standard library only."""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from pathlib import Path

from eagle3_data.findings import Findings, describe_failures
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.status import RunStatus


class GenerationStatus(RunStatus):
    """The current state of the generation; `extraction_id` is its own id. A batch that is answered has the
    state extracted."""

    rule, check = "generate_pass", "check_generation"

    def _places(self) -> tuple[PassPaths, Path]:
        return PassPaths(self._run.generation), self._run.prompt_batches

    def _gate(self, batch: str) -> Path:
        return self._run.generation_gate(batch)

    @cached_property
    def _rejected(self) -> dict[str, dict[str, str]]:
        return {}

    def refusals(self) -> list[str]:
        path = self._run.generation_report
        report = None if path.exists() else Findings.find(path.with_name("report.failed.json"))
        return describe_failures(report.findings) if report else []

    @property
    def is_done(self) -> bool:
        return all(batch.is_done for batch in self.batches)

    @property
    def answers(self) -> Counter[str]:
        """How the answers of this run's passes ended."""
        found: Counter[str] = Counter()
        for ledger in self._ledgers:
            if ledger.extraction_id == self.extraction_id:
                found.update(ledger.answers)
        return found
