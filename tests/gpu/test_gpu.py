"""On a machine with CUDA devices: the proofs on one and two of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tensor_parallel", [1, 2])
@pytest.mark.parametrize("script", ["prove_on_gpu.py", "canary_on_gpu.py"])
def test_on_gpus(tmp_path: Path, script: str, tensor_parallel: int) -> None:
    if torch.cuda.device_count() < tensor_parallel:
        pytest.skip("needs a CUDA device" if tensor_parallel == 1 else "needs a CUDA device more")
    subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name(script)),
            "--tensor-parallel",
            str(tensor_parallel),
            "--work",
            str(tmp_path),
        ],
        check=True,
    )
