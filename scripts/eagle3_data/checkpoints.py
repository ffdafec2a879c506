"""Waiting for Snakemake's checkpoints. Imported by rules/ only."""

from __future__ import annotations

import os
from typing import Any

from snakemake.exceptions import IncompleteCheckpointException
from snakemake.io import checkpoint_target


def require(checkpoint: Any) -> None:
    """In an input function: have Snakemake make the checkpoint first, and then ask again.

    The checkpoint's own `get` waits for its first output only. Where another one was lost, nothing would ever
    make it, and all that depends on it would be left out of the run without an error.
    """
    outputs, _ = checkpoint.rule.expand_output({})
    for output in outputs:
        if not os.path.exists(output):
            raise IncompleteCheckpointException(checkpoint.rule, checkpoint_target(output))
    checkpoint.get()
