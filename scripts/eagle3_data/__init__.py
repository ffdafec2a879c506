"""Turns conversations and a target model into a proven EAGLE-3 training set.

All logic of the workflow lives here and is testable without Snakemake. Importing this package imports the
standard library only; modules that need torch, transformers or vLLM import them themselves.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3_data.assembly.reader import TrainingRow, TrainingSet

__all__ = ["TrainingRow", "TrainingSet"]

VERSION = "0.2.0"
"""Release of this workflow, here and nowhere else (CHANGELOG.md says what changed)."""

FORMAT_VERSION = 1
"""Version of every record and file layout this package writes. Raise it when a reader of old files would
misread them."""

PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])
"""The folder this package is imported from: child processes need it on their PYTHONPATH."""


def __getattr__(name: str) -> Any:
    """The public reader, imported when it is asked for: it needs torch."""
    if name in __all__:
        from eagle3_data.assembly import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
