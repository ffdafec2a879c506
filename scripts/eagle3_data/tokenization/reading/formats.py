"""What a source's path says of its format. Standard library only."""

from __future__ import annotations

from pathlib import Path

JSON_ENDINGS = (".json", ".jsonl", ".ndjson")
CSV_ENDINGS = (".csv", ".tsv")
PARQUET = ".parquet"
COMPRESSED_ENDINGS = (".gz", ".zst")
HUB = "hub:"
"""What stands before the name of a dataset of the hub."""


def format_of(path: Path) -> tuple[str, str | None]:
    """The ending that gives the file's format (empty if unknown), and the name of its compression."""
    endings = [ending.lower() for ending in path.suffixes]
    compression = endings.pop()[1:] if endings[-1:] and endings[-1] in COMPRESSED_ENDINGS else None
    return endings[-1] if endings else "", compression


def is_known(ending: str) -> bool:
    return ending in (*JSON_ENDINGS, *CSV_ENDINGS, PARQUET)
