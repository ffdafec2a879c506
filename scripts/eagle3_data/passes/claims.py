"""Which pass is extracting which sample, so that workflows that share a store also share the work.

A pass claims a sample before its engine gets it: a symbolic link `claims/<key>` to the name of its folder
below `incoming/`, made in one step on every file system that has links. A sample that another pass has
claimed comes last, and is then most often in the store already. A claim is a hint and nothing relies on it:
of two passes that extract one sample, the first to commit wins as ever. So a claim that gets lost costs a
sample that is computed twice, and one that was left behind by a pass of another machine costs PATIENCE_S at
the end. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from eagle3_data.engines.base import Work
from eagle3_data.log import say
from eagle3_data.store import OWNER, Store
from eagle3_data.system.processes import Process

PATIENCE_S = 60.0
"""How long to wait at the end for other passes' samples while none of them arrives, before they are extracted
here, too."""
LOOK_S = 0.5
"""How often to look for them."""


class Claims:
    """The claims of one writer, the name of a folder below the store's `incoming/`."""

    def __init__(self, store: Store, writer: str) -> None:
        self._directory, self._incoming = store.directory / "claims", store.directory / "incoming"
        self._writer = writer
        self._held: set[str] = set()
        with contextlib.suppress(OSError):
            self._directory.mkdir(exist_ok=True)
            for name in os.listdir(self._directory):
                if self.holder(name) is None:
                    self._remove(name)

    def take(self, key: str) -> bool:
        """Claim a sample; False if it is another living pass's."""
        try:
            try:
                os.symlink(self._writer, self._directory / key)
            except FileExistsError:
                if self.holder(key) is not None:
                    return False
                self._remove(key)  # a dead pass's
                os.symlink(self._writer, self._directory / key)
        except FileExistsError:  # another pass has been faster just now
            return False
        except OSError:  # no links on this file system, or no room: nothing is shared
            return True
        self._held.add(key)
        return True

    def holder(self, key: str) -> str | None:
        """The other living pass that has claimed a sample."""
        try:
            writer = os.readlink(self._directory / key)
        except OSError:
            return None
        if writer == self._writer:
            return None
        owner = Process.find(self._incoming / writer / OWNER)
        return None if owner is None or owner.is_gone else writer

    def release(self, is_waiting: Callable[[str], bool] = lambda key: False) -> None:
        """Give up all claims but those on samples that still have to come into the store."""
        for key in [key for key in self._held if not is_waiting(key)]:
            self._held.remove(key)
            self._remove(key)

    def _remove(self, key: str) -> None:
        with contextlib.suppress(OSError):
            (self._directory / key).unlink()


def share(
    requests: Iterator[Work],
    claims: Claims,
    is_waiting: Callable[[str], bool],
    is_found: Callable[[str], bool],
) -> Iterator[Work | None]:
    """The requests, each once it is claimed: those of other passes last. None means that only such are left
    at this moment.

    `is_waiting` says whether this pass still has to bring a sample into the store; `is_found` whether another
    one has, and takes note of it.
    """
    elsewhere: list[Work] = []
    look_at = 0.0
    for request in requests:
        if time.monotonic() >= look_at:
            claims.release(is_waiting)
            elsewhere = [other for other in elsewhere if not is_found(other.key)]
            look_at = time.monotonic() + LOOK_S
        if claims.take(request.key):
            yield request
        else:
            if not elsewhere:
                say(
                    f"{claims.holder(request.key)} is extracting some of the same samples; leaving them to it"
                )
            elsewhere.append(request)
    patient_until = time.monotonic() + PATIENCE_S
    while elsewhere:
        if time.monotonic() < look_at:
            yield None
            continue
        look_at = time.monotonic() + LOOK_S
        claims.release(is_waiting)
        missing = [request for request in elsewhere if not is_found(request.key)]
        if len(missing) < len(elsewhere):
            patient_until = time.monotonic() + PATIENCE_S
        elsewhere = []
        for request in missing:
            if claims.take(request.key) or time.monotonic() > patient_until:
                yield request
            else:
                elsewhere.append(request)
