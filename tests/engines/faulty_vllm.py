"""The real vLLM engine, which refuses the samples named in FAKE_ENGINE_FAULTS (see fake_engine)."""

from __future__ import annotations

from fake_engine import faults

from eagle3_data.engines.base import Request
from eagle3_data.engines.vllm.engine import VllmEngine
from eagle3_data.errors import SampleError


class FaultyVllmEngine(VllmEngine):
    def submit(self, request: Request) -> None:
        if message := faults().get("refuse", {}).get(request.key):
            raise SampleError(message)
        super().submit(request)
