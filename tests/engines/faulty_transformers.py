"""The transformers engine, which refuses the samples named in FAKE_ENGINE_FAULTS (see fake_engine): for runs
that are validated. {"capture": [layer]} has it store the states after these layers instead of those that are
asked for, always in the same way: as an engine that is right for the canary and wrong for the target."""

from __future__ import annotations

from dataclasses import replace

from fake_engine import faults

from eagle3_data.engines.base import EngineSettings, Request
from eagle3_data.engines.transformers import TransformersEngine
from eagle3_data.errors import SampleError


class FaultyTransformersEngine(TransformersEngine):
    def __init__(self, settings: EngineSettings) -> None:
        captured = faults().get("capture", settings.layers)
        super().__init__(replace(settings, layers=tuple(captured)))

    def submit(self, request: Request) -> None:
        if message := faults().get("refuse", {}).get(request.key):
            raise SampleError(message)
        super().submit(request)
