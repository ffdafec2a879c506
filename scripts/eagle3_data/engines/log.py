"""Adds to an engine's failure what its log knows better: vLLM's parent process often only says that a child
of its died."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3_data.diagnosis import diagnose

READ_BYTES = 4 << 20
"""How much of the end of a log is looked at."""


def with_root_cause(failure: dict[str, Any], log: Path, start: int = 0) -> dict[str, Any]:
    """The failure with the log's first real cause in front of its causes, the remedy, and the lines that
    tell. The log is read from byte `start`, where this engine's part begins."""
    try:
        with open(log, "rb") as file:
            file.seek(max(start, log.stat().st_size - READ_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return failure
    diagnosis = diagnose(text)
    told = f"{failure['class']}: {failure['message']}"
    causes = (
        failure["causes"]
        if diagnosis.cause in (told, *failure["causes"])
        else [diagnosis.cause, *failure["causes"]]
    )
    return {**failure, "causes": causes, "remedy": diagnosis.remedy, "excerpt": diagnosis.excerpt}
