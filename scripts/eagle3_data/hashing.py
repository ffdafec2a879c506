"""Content hashes. Standard library only."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterable
from typing import Any


def hash_bytes(*parts: bytes) -> str:
    """128-bit BLAKE2b of the parts' concatenation, 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def hash_json(value: Any) -> str:
    """Hash of a JSON-ready value, whatever the order of its keys."""
    return hash_bytes(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def batch_fingerprint(extraction_id: str, tokens_fingerprint: str) -> str:
    """Identifies a batch's samples together with what is extracted of them."""
    return hash_json([extraction_id, tokens_fingerprint])


def sample_key(token_ids: Iterable[int]) -> str:
    """The content address of a sample: the hash of its token ids as little-endian int32."""
    ids = array("i", token_ids)
    if ids.itemsize != 4:
        raise RuntimeError(f"expected 4-byte integers, this platform has {ids.itemsize}")
    return hash_bytes(ids.tobytes())
