"""What only an engine's log tells: why it failed (vLLM's parent process often only says that a child of its
died), and by which kernels it computes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from eagle3_data.diagnosis import diagnose
from eagle3_data.errors import InputError, headline
from eagle3_data.records.failures import Failure
from eagle3_data.target import check_weights

READ_BYTES = 4 << 20
"""How much of the end of a log is looked at."""
KERNELS = re.compile(
    r"\b((?:[Uu]sing|[Ss]elected) [^\n]{0,120}?"
    r"(?:backend|model runner|kernel\w*|gemm|linear\w*|kv cache layout)[^\n]{0,60}?)"
    r"(?=\.?\s*$| out of potential| \(selected|\. )"
    r"|\[(\w*model_runner)\.py:\d+\] Starting to load model",
    re.MULTILINE | re.IGNORECASE,
)
"""How vLLM says what it chose: its model runner, attention and MoE backends, linear kernels."""

WEIGHTS = re.compile(r"safetensor|weight file|header too large|incomplete metadata", re.IGNORECASE)
REPAIR = "download the files named in the first cause again, then run the same command"


def with_root_cause(failure: Failure, log: Path, start: int = 0) -> Failure:
    """The failure with the log's first real cause in front of its causes, the remedy, and the lines that
    tell. The log is read from byte `start`, where this engine's part begins."""
    if (text := _end_of(log, start)) is None:
        return failure
    diagnosis = diagnose(text)
    is_known = diagnosis.cause in (failure.headline, *failure.causes)
    causes = failure.causes if is_known else [diagnosis.cause, *failure.causes]
    return replace(failure, causes=causes, remedy=diagnosis.remedy, excerpt=diagnosis.excerpt)


def with_damaged_weights(failure: Failure, directory: Path) -> Failure:
    """The failure of a load, with the weight file of checkpoint `directory` that is damaged in front of its
    causes: vLLM says what is wrong with a file and not which one it is."""
    if not WEIGHTS.search("\n".join((failure.headline, *failure.causes))):
        return failure
    try:
        check_weights(directory)
    except InputError as error:
        return replace(failure, causes=[headline(error), *failure.causes], remedy=REPAIR)
    return failure


def reported_kernels(log: Path, start: int = 0) -> list[str]:
    """What vLLM says in its log, from byte `start`, that it computes with; sorted, each once."""
    said = KERNELS.finditer(_end_of(log, start) or "")
    return sorted({found[1] or f"model runner {found[2]}" for found in said})


def _end_of(log: Path, start: int) -> str | None:
    """None where there is no log."""
    try:
        with open(log, "rb") as file:
            file.seek(max(start, log.stat().st_size - READ_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return None
