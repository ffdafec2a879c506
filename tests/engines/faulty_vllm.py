"""The real vLLM engine, which refuses the samples named in FAKE_ENGINE_FAULTS (see fake_engine), or dies of
those of `kill`: vLLM's engine core is killed with kill -9 when it is handed one. The connector cannot write
those of `write`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

from fake_engine import faults

from eagle3_data.engines.base import Request
from eagle3_data.engines.vllm.engine import VllmEngine
from eagle3_data.errors import SampleError


class FaultyVllmEngine(VllmEngine):
    def submit(self, request: Request) -> None:
        if message := faults().get("refuse", {}).get(request.key):
            raise SampleError(message)
        if request.key in faults().get("write", ()):
            Path(f"{request.states_path}.part").mkdir(
                exist_ok=True
            )  # where vLLM's connector wants to write a file
        super().submit(request)
        if request.key in faults().get("kill", ()):
            (core,) = multiprocessing.active_children()
            os.kill(core.pid, signal.SIGKILL)
