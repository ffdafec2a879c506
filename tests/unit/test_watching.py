"""What a user sees on the terminal while passes run elsewhere."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.passes.watching import LINE_EVERY_S, PassWatcher
from eagle3_data.records import write_json
from eagle3_data.system.processes import this_process

STATE = {
    "pass": "001",
    "stripe": 0,
    "extraction_id": "x",
    "engine_log": "engine.log",
    "command": None,
    "token": "t",
    "beat": 1,
    "started_at": 100.0,
    "updated_at": 160.0,
    "extracting_since": 120.0,
    "to_extract": 10,
    "extracted": 5,
    "failed": 0,
    "tokens": 4000,
}


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def watcher(tmp_path: Path, lines: list[str]) -> PassWatcher:
    return PassWatcher(tmp_path, lines.append)


def lease(directory: Path, phase: str, **facts: Any) -> None:
    write_json(
        directory / "running/0-of-1.json", {**this_process().to_json(), **STATE, "phase": phase, **facts}
    )


def test_a_new_phase_is_said_at_once_and_progress_now_and_then(
    tmp_path: Path, watcher: PassWatcher, lines: list[str]
) -> None:
    watcher.look(0)
    assert lines == []
    lease(tmp_path, "loading")
    watcher.look(5)
    watcher.look(10)
    assert len(lines) == 1 and ": loading for 60 s" in lines[0]
    lease(tmp_path, "extracting")
    watcher.look(15)
    assert "5 of 10 samples, 0 failed, 100 tokens/s, about 40 s left" in lines[1]
    watcher.look(15 + LINE_EVERY_S - 1)
    assert len(lines) == 2
    watcher.look(15 + LINE_EVERY_S)
    assert len(lines) == 3


def test_a_lease_that_a_killed_pass_left_says_nothing(
    tmp_path: Path, watcher: PassWatcher, lines: list[str]
) -> None:
    lease(tmp_path, "loading", pid=2**22 + 1)
    watcher.look(0)
    (tmp_path / "running/0-of-1.json").write_text(json.dumps({"format_version": 1}))
    watcher.look(1)
    assert lines == []


def test_a_watcher_ends_when_it_is_stopped(watcher: PassWatcher) -> None:
    watcher.stop()  # was never started
    watcher.start()
    started = time.monotonic()
    watcher.stop()
    assert time.monotonic() - started < 60
    assert not watcher._thread.is_alive()
