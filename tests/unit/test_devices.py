from __future__ import annotations

import os
from pathlib import Path

import pytest

from eagle3_data.system import devices


@pytest.fixture
def eight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for nvidia-smi on a machine with eight GPUs, one of them smaller."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("""#!/bin/sh
case "$1" in *index) seq 0 7 ;; *memory.total) seq 81000 81007 ;; esac
""")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    for name in ("CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "restored after the test")
        monkeypatch.delenv(name)
    return smi


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        (None, []),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("0", ["0"]),
        ("0,1,2,3", ["0", "1", "2", "3"]),
        ("GPU-1a, MIG-2b", ["GPU-1a", "MIG-2b"]),
    ],
)
def test_the_devices_given_to_a_job_are_named_and_hidden_ones_are_none(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, expected: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    assert devices.given_devices() == expected


def test_the_smallest_device_counts(eight: Path) -> None:
    assert devices.smallest_memory() == 81000 << 20
    eight.write_text("#!/bin/sh\necho No devices were found\n")
    assert devices.smallest_memory() is None
    eight.write_text("#!/bin/sh\nexit 9\n")
    assert devices.smallest_memory() is None


@pytest.mark.parametrize(
    ("given", "stripe", "jobs", "tensor_parallel", "expected"),
    [
        (None, 0, 2, 4, "0,1,2,3"),
        (None, 1, 2, 4, "4,5,6,7"),
        (None, 2, 3, 1, "2"),
        ("4,5,6,7", 1, 2, 2, "6,7"),
        (None, 0, 1, 4, None),
        (None, 1, 2, 8, None),
        ("4,5", 1, 2, 2, "4,5"),
        ("", 1, 2, 1, ""),
    ],
    ids=[
        "first half",
        "second half",
        "one each",
        "of those given",
        "one job",
        "another machine's share",
        "given its own",
        "on the CPU",
    ],
)
def test_stripes_on_one_machine_use_devices_of_their_own(
    eight: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    stripe: int,
    jobs: int,
    tensor_parallel: int,
    expected: str | None,
) -> None:
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    devices.take_own_devices(stripe, jobs, tensor_parallel)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") == expected


def test_what_slurm_gave_to_a_job_is_its_own_already(eight: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    devices.take_own_devices(1, 2, 2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"
