"""Code that comes with a model cannot hold up or fill a machine."""

import contextlib
import resource
import signal

import pytest

from eagle3_data.system import bounds
from eagle3_data.system.bounds import RunawayError, call_bounded


def endless():
    while True:
        with contextlib.suppress(Exception):  # what is to be ended may handle whatever it can
            sum(range(10_000))


@pytest.fixture(autouse=True)
def tight(monkeypatch):
    monkeypatch.setattr(bounds, "MEMORY_BYTES", 1 << 27)
    monkeypatch.setattr(bounds, "_bounds", bounds._Bounds())


def test_an_endless_call_is_ended(monkeypatch):
    monkeypatch.setattr(bounds, "SECONDS", 0.3)
    with pytest.raises(RunawayError, match=r"ran for more than 0\.3 s of processor time"):
        call_bounded(endless)
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


@pytest.mark.parametrize("bomb", [lambda: "x" * (1 << 33), lambda: [bytearray(1 << 26) for _ in range(10)]])
def test_a_call_that_takes_too_much_memory_is_ended(bomb):
    before = resource.getrlimit(resource.RLIMIT_AS)
    call_bounded(int)  # so that the size of the process is known from an earlier call
    with pytest.raises(RunawayError, match=r"asked for more than 0\.125 GiB of memory"):
        call_bounded(bomb)
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_what_the_process_has_come_to_hold_meanwhile_does_not_count():
    call_bounded(int)
    held = bytearray(1 << 27)
    assert call_bounded(lambda: len(bytearray(1 << 26))) == 1 << 26
    assert held is not None


def test_results_and_errors_pass():
    assert call_bounded(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        call_bounded(lambda: 1 // 0)
