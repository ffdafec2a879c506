"""The gate's own part: of many that fail for one cause, one tells it."""

from __future__ import annotations

import threading
from pathlib import Path

from eagle3_data.passes.gate import first_to_tell

GATES = 16


def test_gates_that_ask_at_once_name_the_same_one(tmp_path: Path) -> None:
    for round_ in range(50):
        start, named = threading.Barrier(GATES), []

        def ask(
            batch: int,
            start: threading.Barrier = start,
            named: list[str] = named,
            told: Path = tmp_path / f"{round_}.told",
        ) -> None:
            start.wait()
            named.append(first_to_tell(f"{batch:05d}", told))

        gates = [threading.Thread(target=ask, args=(batch,)) for batch in range(GATES)]
        for gate in gates:
            gate.start()
        for gate in gates:
            gate.join()
        assert len(named) == GATES
        assert set(named) == {(tmp_path / f"{round_}.told").read_text()}
    assert len(list(tmp_path.iterdir())) == 50, "nothing else is left behind"
