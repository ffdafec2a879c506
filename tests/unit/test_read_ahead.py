"""Weights are read into the page cache while the canary runs, as far as that is of use."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from eagle3_data.system import read_ahead
from eagle3_data.system.read_ahead import reading_ahead


def test_files_are_read_until_the_block_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = [tmp_path / "a", tmp_path / "gone", tmp_path / "b"]
    for file in (files[0], files[2]):
        file.write_bytes(bytes(30_000_000))
    before = _read_bytes()
    with reading_ahead(files, "some files"):
        deadline = time.monotonic() + 60
        while _read_bytes() - before < 60_000_000 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "read ahead 0.1 of 0.1 GB of some files in " in caplog.text


def test_a_block_that_ends_at_once_does_not_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open(tmp_path / "zeros", "wb") as file:
        file.truncate(20 << 30)
    started = time.monotonic()
    with reading_ahead([tmp_path / "zeros"], "zeros"):
        pass
    assert time.monotonic() - started < 30
    assert "of 21.5 GB of zeros" in caplog.text or "are not read ahead" in caplog.text


def test_what_would_not_stay_in_memory_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    monkeypatch.setattr(read_ahead, "available_bytes", lambda: 1500)
    with reading_ahead([tmp_path / "a"], "the weights"):
        pass
    assert "the weights (0.0 GB) are not read ahead: only 0.0 GB of memory are available" in caplog.text


def _read_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(lines[0].split()[1])
