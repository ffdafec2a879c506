"""The paths of the files of a kind of pass, below `results/<run>/extraction`. Standard library only."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from eagle3_data.passes.ledger import Ledger


@dataclass(frozen=True)
class PassPaths:
    root: Path

    def ledger(self, number: str, stripe: int | str) -> Path:
        """What one stripe of a pass did: the only declared output of its rule."""
        return self.root / "passes" / number / f"{stripe}.json"

    def ledgers(self) -> list[Path]:
        """All ledgers there are, oldest pass first."""
        return sorted(
            self.root.glob("passes/[0-9]*/[0-9]*.json"),
            key=lambda path: (int(path.parent.name), int(path.stem)),
        )

    def read_ledgers(self) -> list[Ledger]:
        """What the ledgers say, oldest pass first, but for those that cannot be read."""
        return [ledger for path in self.ledgers() if (ledger := Ledger.find(path))]

    def pass_numbers(self) -> list[int]:
        """Numbers of all pass folders, with a ledger in them or not."""
        return [int(path.name) for path in self.root.glob("passes/*") if re.fullmatch(r"\d{3,}", path.name)]

    def stored_ledger(self, number: str) -> Path:
        """Batches that were complete in the store before a pass was needed: what the rule
        `find_stored_batches` makes."""
        return self.root / "passes" / number / "stored.json"

    def stored_ledgers(self) -> list[Path]:
        return sorted(self.root.glob("passes/[0-9]*/stored.json"))

    @property
    def running(self) -> Path:
        """Leases and progress of the passes that run now (`eagle3_data.passes.lease`)."""
        return self.root / "running"

    def record(self, batch: str) -> Path:
        """Written by the pass that finished the batch: its samples and that pass."""
        return self.root / "records" / f"{batch}.json"

    def failure(self, batch: str, number: str, key: str) -> Path:
        """One failed sample in one pass; kept over later passes."""
        return self.root / "failures" / batch / f"{number}-{key}.json"

    def failure_counts(self, batch: str, number: str) -> Counter[str]:
        """How many failure records each sample of a batch has of other passes than `number`, by key."""
        names = (path.stem.partition("-") for path in self.root.glob(f"failures/{batch}/*-*.json"))
        return Counter(key for other, _, key in names if other != number)

    def failure_summary(self, batch: str, number: str) -> Path:
        """What one pass failed to do of a batch, in short."""
        return self.root / "failures" / batch / f"{number}.json"
