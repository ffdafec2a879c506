"""The content-addressed store: `<root>/<extraction_id>/<kk>/<key>.safetensors` and its sidecar `<key>.json`.

A sample is in the store when both files are there. Commit order: the states are complete under a name below `incoming/`
and checked; then the sidecar is written; last the states are renamed into place. So a reader never sees a torn file,
and a states file without a sidecar does not exist. Standard library only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3_data.records import read_json, write_json


class Store:
    """The samples of one extraction id. Creating it touches nothing on the disk."""

    def __init__(self, root: str | os.PathLike[str], extraction_id: str) -> None:
        self.directory = Path(root) / extraction_id
        self.extraction_id = extraction_id

    def states_path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.safetensors"

    def sidecar_path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.json"

    def incoming(self, writer: str) -> Path:
        """Where `writer` (a pass and stripe) has its engine put states before they are committed."""
        return self.directory / "incoming" / writer

    def holds(self, key: str) -> bool:
        return self.states_path(key).exists() and self.sidecar_path(key).exists()

    def keys(self) -> set[str]:
        """The keys of all samples in the store, from its directory listings alone."""
        return {key for shelf in self._shelves() for key in _keys_of(shelf)}

    def _shelves(self) -> Iterator[Path]:
        if self.directory.is_dir():
            yield from (path for path in self.directory.iterdir() if len(path.name) == 2)

    def read_sidecar(self, key: str) -> dict[str, Any]:
        """Raises InputError where there is none."""
        return read_json(self.sidecar_path(key))

    def commit(self, key: str, states: Path, sidecar: dict[str, Any]) -> None:
        """Take in complete, checked states. They must lie on the store's file system."""
        write_json(self.sidecar_path(key), {"key": key, "extraction_id": self.extraction_id, **sidecar})
        os.replace(states, self.states_path(key))

    def quarantine(self, key: str, reason: str) -> None:
        """Take a rejected sample out of the store, kept aside with the reason, so that the next pass extracts it anew."""
        place = self.directory / "quarantine"
        place.mkdir(parents=True, exist_ok=True)
        stamp = time.strftime("%Y%m%dT%H%M%S")
        write_json(place / f"{key}.{stamp}.reason.json", {"key": key, "reason": reason})
        for path in (self.states_path(key), self.sidecar_path(key)):
            if path.exists():
                os.replace(path, place / f"{key}.{stamp}{path.suffix}")


def _keys_of(shelf: Path) -> set[str]:
    names = {entry.name for entry in os.scandir(shelf)}
    return {name.removesuffix(".safetensors") for name in names if name.endswith(".safetensors") and f"{name.removesuffix('.safetensors')}.json" in names}
