"""Checksums of whole files, as fast as they can be read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import xxhash

from eagle3_data.records.record import open_regular


def file_checksum(path: Path) -> str:
    """xxh3-128 of a file's bytes, 32 hex digits. Raises OSError, also if it is not a regular file."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            return xxhash.xxh3_128_hexdigest(b"")
        return xxhash.xxh3_128_hexdigest(np.memmap(file, dtype=np.uint8, mode="r").data)
