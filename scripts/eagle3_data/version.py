"""The version of this workflow, for ledgers, sidecars and provenance. Not part of any extraction id."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

from eagle3_data import VERSION

ROOT = Path(__file__).resolve().parents[2]
GIT_TIMEOUT_S = 10


@cache
def workflow_version() -> str:
    """The release, and where the workflow lies in a git checkout of its own the commit: "0.2.0+g1a2b3c4",
    with ".dirty" where files differ from it."""
    if not os.path.exists(ROOT / ".git"):  # False where it may not be looked at, too
        return VERSION
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=.dirty", "--exclude", "*"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=GIT_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return VERSION
    return f"{VERSION}+g{asked.stdout.strip()}"
