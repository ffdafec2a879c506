"""The GPUs of this machine and of this job. Standard library only: it runs before anything is
imported that uses them."""

from __future__ import annotations

import os
import subprocess

NO_DEVICE = ("", "-1", "NoDevFiles")


def given_devices() -> list[str]:
    """The devices that CUDA_VISIBLE_DEVICES gives to this process; none where it does not say, or hides all
    from a run on the CPU."""
    names = (name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(","))
    return [name for name in names if name not in NO_DEVICE]


def smallest_memory() -> int | None:
    """Bytes of the smallest GPU of this machine, None where there is none: the check often runs on a machine
    without."""
    return min((int(line) << 20 for line in _query("memory.total")), default=None)


def take_own_devices(stripe: int, jobs: int, tensor_parallel: int) -> None:
    """On a machine whose devices are enough for all stripes, keep this process and its children on this
    stripe's own.

    SLURM has given each job its own. Elsewhere, with fewer devices than all stripes need, each stripe is
    taken to run where the others do not.
    """
    if jobs == 1 or "SLURM_JOB_ID" in os.environ:
        return
    devices = given_devices() if "CUDA_VISIBLE_DEVICES" in os.environ else _query("index")
    if len(devices) >= jobs * tensor_parallel:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
            devices[stripe * tensor_parallel : (stripe + 1) * tensor_parallel]
        )


def device_names() -> list[str]:
    """The models of this machine's GPUs, each once; none where there are none."""
    return sorted(set(_lines("name")))


def _query(field: str) -> list[str]:
    """A number for each GPU, from nvidia-smi."""
    lines = _lines(field)
    return lines if all(line.isdigit() for line in lines) else []


def _lines(field: str) -> list[str]:
    command = ["nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in shown.splitlines() if line.strip()]
