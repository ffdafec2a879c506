"""Every skip needs a reason that tests/expected_skips.txt foresees; any other one fails the run, so that a
test cannot quietly stop to run."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

# More threads for each of several tests at once only wait for one another: what computes costs twice as much.
os.environ.setdefault("OMP_NUM_THREADS", "1")

EXPECTED = [
    re.compile(line)
    for line in Path(__file__).with_name("expected_skips.txt").read_text(encoding="utf-8").splitlines()
    if line.strip() and not line.startswith("#")
]
_unexpected: list[str] = []


UNIT = Path(__file__).with_name("unit")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file of unit tests is run by one of xdist's workers, which makes what its tests share once."""
    for item in items:
        if item.path.is_relative_to(UNIT) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Tests that must not run at once do not, or nothing runs."""
    if getattr(session.config.option, "loadgroup", False):  # set in xdist's workers only
        for item in session.items:
            if item.get_closest_marker("xdist_group") is not None and "@" not in item.nodeid:
                pytest.exit(f"xdist has put {item.nodeid} in no group", returncode=3)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note_skip(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note_skip(report)  # whole modules: pytest.importorskip, pytest.skip(allow_module_level=True)


def _note_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        if not any(expected.search(reason) for expected in EXPECTED):
            _unexpected.append(f"{report.nodeid}: {reason}")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    if _unexpected and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return (yield)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _unexpected:
        terminalreporter.section("unexpected skips", red=True, bold=True)
        terminalreporter.line(
            "Make these tests run, or add their reason to tests/expected_skips.txt with a comment that says"
            " why."
        )
        for line in _unexpected:
            terminalreporter.line(line)
