"""The names of a training set's files. Standard library only: the Snakefile reads this.

The set itself is in speculators' format, its states linked from the store; the other formats are made from it
and lie below it, each in a folder with the format's name.
"""

from __future__ import annotations

from pathlib import Path

STATES = "hidden_states"
PROVENANCE = "provenance.json"
CARD = "README.md"
TRAIN = "train.yaml"
SEAL = "seal.json"
STATES_TABLE = "states.parquet"
FILES_TABLE = "files.parquet"
"""In the folder of a format: name, size and checksum of each row's file."""
CONVERTED = ("specforge", "modelopt")
"""The formats that are made from speculators', in which states are written anew."""
OURS = (
    "data-*.arrow", "dataset_info.json", "state.json", "token_freq.pt", "d2t-*.npy", "t2d-*.npy", STATES,
    PROVENANCE, CARD, TRAIN, SEAL, STATES_TABLE, *CONVERTED, ".snakemake_timestamp", ".*.part",
)  # fmt: skip
"""What may lie in a training set; the trainer itself caches vocabulary maps there."""


def states_name(row: int) -> str:
    return f"hs_{row}.safetensors"


def foreign_files(directory: Path) -> list[str]:
    """What lies in `directory` that no training set holds."""
    if not directory.is_dir():
        return []
    return sorted(
        path.name for path in directory.iterdir() if not any(path.match(pattern) for pattern in OURS)
    )
