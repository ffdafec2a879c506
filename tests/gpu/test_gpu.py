"""On a machine with CUDA devices: the proof on as many of them as there are, one and two."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_both_demo_targets_extract_and_validate(tmp_path: Path, tensor_parallel: int) -> None:
    if torch.cuda.device_count() < tensor_parallel:
        pytest.skip("needs a CUDA device" if tensor_parallel == 1 else "needs a CUDA device more")
    script = Path(__file__).with_name("prove_on_gpu.py")
    subprocess.run([sys.executable, str(script), "--tensor-parallel", str(tensor_parallel), "--work", str(tmp_path)], check=True)
