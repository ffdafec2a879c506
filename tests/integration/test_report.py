"""Snakemake's own report holds this workflow's pages, and is made without a network."""

from __future__ import annotations

import base64
import re

import pytest

from integration.workflow import Workflow

pytestmark = pytest.mark.slow

NO_NETWORK = (
    "import socket\n\n\ndef refuse(*arguments, **keywords):\n    raise OSError('no network in this"
    " test')\n\n\nsocket.socket.connect = refuse\n"
)


def pages(report: str) -> list[str]:
    """The HTML pages embedded in a report, as texts."""
    return [
        base64.b64decode(data).decode()
        for data in re.findall(r"data:text/html[^,]*;base64,([A-Za-z0-9+/=]+)", report)
    ]


def test_the_report_also_of_an_unfinished_run_holds_the_compatibility_page_and_the_samples(
    finished: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    (finished.directory / "offline").mkdir()
    (finished.directory / "offline/sitecustomize.py").write_text(NO_NETWORK)
    monkeypatch.setenv("PYTHONPATH", str(finished.directory / "offline"))
    done = finished.run("--report", "report.html")
    assert done.returncode == 0, done.output
    report = (finished.directory / "report.html").read_text(encoding="utf-8")
    shown = pages(report)
    for page in ("compatibility/report.html", "tokens/samples.html"):
        assert (finished.results / page).read_text(encoding="utf-8") in shown, page
    assert finished.run("extract").nothing_done
