"""Engines whose fault only a canary finds before the target is loaded; vLLM itself is imported only by the one that needs it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

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


def layer_off_by_one_vllm(settings: EngineSettings) -> Any:
    """Real vLLM, whose states are those of the next layer."""
    from eagle3_data.engines.vllm.engine import VllmEngine

    class OffByOne(VllmEngine):
        def step(self) -> list[Extracted | Rejected]:
            results = super().step()
            for result in results:
                path = Path(result.states_path)
                while not path.exists():
                    time.sleep(0.01)
                rewrite(path, layer_off_by_one)
            return results

    return OffByOne(settings)
