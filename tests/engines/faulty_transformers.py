"""The transformers engine, which refuses the samples named in FAKE_ENGINE_FAULTS (see fake_engine): for runs
that are validated."""

from __future__ import annotations

from fake_engine import faults

from eagle3_data.engines.base import Request
from eagle3_data.engines.transformers import TransformersEngine
from eagle3_data.errors import SampleError


class FaultyTransformersEngine(TransformersEngine):
    def submit(self, request: Request) -> None:
        if message := faults().get("refuse", {}).get(request.key):
            raise SampleError(message)
        super().submit(request)
