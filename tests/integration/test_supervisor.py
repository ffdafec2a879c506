"""The pass's own process under signals: the ledger is written, what is finished is kept, no engine outlives its supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from eagle3_data.config import load_config, sections_json
from integration.workflow import Workflow

pytestmark = pytest.mark.slow


def start_pass(workflow: Workflow, ledger: Path) -> subprocess.Popen[bytes]:
    """The pass as its rule starts it, with samples slow enough to be interrupted."""
    workflow.faults = {"sleep_s": 0.3}
    workflow.arguments()  # writes the faults
    config = sections_json(load_config(workflow.config), "target", "tokenization", "extraction", "compatibility")
    arguments = [
        "--config",
        config,
        "--results",
        "results/test",
        "--pass-number",
        "001",
        "--stripe",
        "0",
        "--engine-log",
        "engine.log",
        "--ledger",
        str(ledger),
    ]
    command = [sys.executable, str(workflow.root / "scripts/extract_pass.py"), *arguments]
    return subprocess.Popen(command, cwd=workflow.directory, env=workflow.environment(), stderr=open(workflow.directory / "pass.log", "wb"))


def wait_for(condition: object, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


def engines_of(supervisor: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(supervisor.pid).children(recursive=True)


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_pass_writes_its_ledger_and_keeps_what_is_finished(fast: Workflow, signal_number: int) -> None:
    ledger = fast.results / "extraction/passes/001/0.json"
    supervisor = start_pass(fast, ledger)
    wait_for(lambda: len(fast.stored()) >= 2)
    engines = engines_of(supervisor)
    supervisor.send_signal(signal_number)
    assert supervisor.wait(20) == 0
    assert engines and not any(engine.is_running() for engine in engines)
    record = json.loads(ledger.read_text())
    assert record["failure"]["message"] == f"the pass was stopped by {signal.Signals(signal_number).name}"
    states = [outcome["state"] for outcome in record["batches"].values()]
    assert "complete" in states
    assert "not_reached" in states
    assert "failed" not in states
    assert not list(fast.directory.glob("results/store/*/incoming/*/*"))


def test_no_engine_outlives_a_killed_supervisor(fast: Workflow) -> None:
    supervisor = start_pass(fast, fast.results / "extraction/passes/001/0.json")
    wait_for(lambda: len(fast.stored()) >= 2)
    engines = engines_of(supervisor)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    assert engines
    wait_for(lambda: not any(engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE for engine in engines), 10)
    fast.faults = {}
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert sum(ledger["samples_extracted"] for ledger in run.passes.values()) < 10
    assert len(fast.stored()) == 10
