"""What tokenization waits for where the target answers itself. Standard library only.

One record between the gates and tokenization, since tokenization is a checkpoint: Snakemake 9.27 at first
takes one that depends on another (the planned prompts) for finished, whatever has changed, and plans what
follows from its old output.
"""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_data.passes.ledger import FailedSample
from eagle3_data.records import Record


@dataclass(frozen=True)
class AnsweredBatches(Record):
    """Every batch with its fingerprint, and the failed conversations without which they are complete."""

    batches: dict[str, str]
    left_out: list[FailedSample]
