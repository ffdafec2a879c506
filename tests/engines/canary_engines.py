"""Engines whose fault only a canary finds before the target is loaded."""

from __future__ import annotations

import time
from pathlib import Path

from canary_faults import layer_off_by_one, rewrite
from eagle3_data.engines.base import EngineSettings, Extracted, Rejected, Request
from eagle3_data.engines.transformers import TransformersEngine


class SilentStart:
    def __init__(self, settings: EngineSettings) -> None:
        time.sleep(1e6)


class SilentAtLongSamples(TransformersEngine):
    """Never comes back from the first sample of 100 tokens or more."""

    def submit(self, request: Request) -> None:
        if len(request.token_ids) >= 100:
            time.sleep(1e6)
        super().submit(request)


class RefusingWorker:
    """Does not start, for a reason that only its cause tells."""

    def __init__(self, settings: EngineSettings) -> None:
        try:
            raise NotImplementedError("this attention backend has no kernel for head size 192")
        except NotImplementedError as error:
            raise RuntimeError("Engine core initialization failed") from error


class LayerOffByOne(TransformersEngine):
    """Each layer's states are those of the next one."""

    def step(self) -> list[Extracted | Rejected]:
        results = super().step()
        for result in results:
            rewrite(Path(result.states_path), layer_off_by_one)
        return results
