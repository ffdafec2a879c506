"""A child process and its end, also where it does not end."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from eagle3_data.system import child
from eagle3_data.system.child import Child


def test_a_killed_child_is_gone_and_reported_in_words(tmp_path: Path) -> None:
    sleeper = Child("http.server", ["0"], tmp_path / "log")
    sleeper.kill()
    assert sleeper.end().startswith("was killed by SIGKILL")


def test_a_process_that_cannot_be_killed_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A process that waits for a device's driver (state D) does not die of SIGKILL: here one that gets none
    stands for it."""
    monkeypatch.setattr(child, "DEATH_S", 0.3)
    stuck = Child("http.server", ["0"], tmp_path / "log")
    killpg, pid = os.killpg, stuck.process.pid
    monkeypatch.setattr(os, "killpg", lambda group, number: None)
    started = time.monotonic()
    stuck.kill()
    stuck.kill()
    told = stuck.end()
    assert time.monotonic() - started < 5
    assert f"process {pid}" in capsys.readouterr().err
    assert "did not end" in told
    killpg(pid, signal.SIGKILL)
    stuck.process.wait()
