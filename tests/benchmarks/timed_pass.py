"""The extraction pass with timers in its supervisor; called as scripts/extract_pass.py is."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

import timers

import extract_pass
from eagle3_data import cli
from eagle3_data.extraction import committer
from eagle3_data.passes.feeding import Feeding
from eagle3_data.passes.flight import Flight
from eagle3_data.store import Store


def time_supervisor() -> None:
    timers.wrap(Flight, "depart", "depart", lambda _, request: {"key": request.key})
    timers.wrap(Flight, "arrive", "arrive", lambda _, word, __: {"key": word.key})
    timers.wrap(Flight, "book", "book")
    timers.wrap(Feeding, "_send", "feed")
    timers.wrap(
        committer.StatesCommitter, "commit", "commit", lambda _, request, __, ___: {"key": request.key}
    )
    timers.wrap(committer, "wait_for_states", "commit: wait for the file")
    timers.wrap(committer, "open_checked", "commit: check")
    timers.wrap(committer, "file_checksum", "commit: checksum")
    timers.wrap(Store, "commit", "commit: sync, sidecar, rename")


if __name__ == "__main__":
    time_supervisor()
    cli.run(extract_pass.main)
