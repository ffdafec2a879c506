"""Takes what the engine wrote into the store: wait for it, check it, hash it, sidecar, rename. Runs in
threads while the engine computes."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from eagle3_data.engines.base import Extracted, Request, error_path
from eagle3_data.errors import EngineError, SampleError
from eagle3_data.passes.commits import Kept, RejectionError, UnwrittenError
from eagle3_data.records.checksum import file_checksum
from eagle3_data.records.failures import Failure
from eagle3_data.store import Store
from eagle3_data.store.states import States, number_problems, open_states, structure_problems

POLL_S = 0.002
LAST_LOOK_S = 2.0
"""How long to wait for a file after its engine has died, since its writer has died, too."""


@dataclass(frozen=True)
class Expected:
    """What every states file of an extraction must look like. `dtype`: that of the file, "fp8" included."""

    layers: tuple[int, ...]
    hidden_size: int
    dtype: str


SampleProvenance = TypedDict(
    "SampleProvenance",
    {
        "layers": list[int],
        "dtype": str,
        "stored_dtype": str,
        "tensor_parallel": int,
        "environment": dict[str, str],
        "pass": str,
        "versions": dict[str, str],
        "kernels": list[str],
    },
    total=False,
)
"""How a sample was made, for people: further keys of its sidecar. Versions and kernels are added once the
engine is ready."""


class StatesCommitter:
    """Commits the states of one pass's samples into `store`."""

    def __init__(
        self, store: Store, expected: Expected, provenance: SampleProvenance, write_timeout_s: float
    ) -> None:
        self._store = store
        self._expected = expected
        self._provenance = provenance
        self._write_timeout_s = write_timeout_s

    def commit(self, request: Request, extracted: Extracted, engine_gone: threading.Event) -> Kept | None:
        """Commit one sample; None if another run was first. Raises SampleError, EngineError or
        RejectionError; then nothing of it is kept. `engine_gone` shortens the wait for a file that will not
        come.
        """
        path = Path(request.states_path)
        if extracted.states_path != request.states_path:
            raise EngineError(
                f"asked for {request.states_path}, the engine wrote {extracted.states_path}; its states may"
                " be another sample's"
            )
        try:
            wait_for_states(path, self._write_timeout_s, engine_gone)
            open_checked(path, request, self._expected)
            size = path.stat().st_size
            sidecar = {
                **self._provenance,
                "greedy_token": extracted.greedy_token,
                "tokens": len(request.token_ids),
                "size_bytes": size,
                "xxh3_128": file_checksum(path),
                "committed_at": time.time(),
            }
            kept = Kept(len(request.token_ids), size)
            return kept if self._store.commit(request.key, path, sidecar) else None
        finally:
            path.unlink(missing_ok=True)


def wait_for_states(path: Path, timeout_s: float, engine_gone: threading.Event) -> None:
    """Wait until the engine has written the states. Raises RejectionError where it could not, EngineError
    after `timeout_s`, UnwrittenError soon after the engine is gone."""
    error = error_path(path)
    gone, deadline = False, time.monotonic() + timeout_s
    while not path.exists():
        if error.exists():
            failure = Failure.from_json(json.loads(error.read_text(encoding="utf-8")))
            error.unlink()
            raise RejectionError(failure)
        if engine_gone.is_set() and not gone:
            gone, deadline = True, time.monotonic() + LAST_LOOK_S
        if time.monotonic() >= deadline:
            message = (
                f"the engine reported {path.name} as finished, but neither the file nor an error appeared"
            )
            raise (
                UnwrittenError(f"{message} before it died")
                if gone
                else EngineError(f"{message} within {timeout_s:.0f} s")
            )
        time.sleep(POLL_S)


def open_checked(path: Path, request: Request, expected: Expected) -> States:
    """The states that the engine wrote for a request. Raises SampleError where they cannot be."""
    states = open_states(path)
    problems = structure_problems(
        states, request.token_ids, len(expected.layers), expected.hidden_size, expected.dtype
    )
    problems = problems or number_problems(states)
    if problems:
        message = "; ".join(f"{name}: {message}" for name, message in problems)
        raise SampleError(f"the states the engine wrote are wrong: {message}")
    return states
