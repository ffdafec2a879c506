"""The content-addressed store of hidden states, and the files in it."""

from eagle3_data.store.store import (
    ABANDONED_S,
    OWNER,
    Sidecar,
    Store,
    check_root,
    last_change,
)

__all__ = [
    "ABANDONED_S",
    "OWNER",
    "Sidecar",
    "Store",
    "check_root",
    "last_change",
]
