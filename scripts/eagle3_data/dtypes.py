"""In which data type states are stored. Standard library only."""

from __future__ import annotations

SAME = "same"


def stored_dtype(dtype: str, storage_dtype: str = SAME) -> str:
    """The data type in the store of states that an engine computes in `dtype`; `storage_dtype` as in the
    section `extraction`."""
    return dtype if storage_dtype == SAME else storage_dtype
