"""The transformers engine with the faults of company_faults: a sample is in company while others wait."""

from __future__ import annotations

from pathlib import Path

import torch
from company_faults import asked_for, spoiled
from safetensors.torch import load_file, save_file

from eagle3_data.engines.base import EngineSettings, Extracted, Rejected, states_metadata
from eagle3_data.engines.transformers import TransformersEngine


class SpoilingTransformersEngine(TransformersEngine):
    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(asked_for(settings))
        self._before: torch.Tensor | None = None

    def step(self) -> list[Extracted | Rejected]:
        fresh = self._waiting[0].fresh
        results = super().step()
        (result,) = results
        path = Path(result.states_path)
        tensors = load_file(path)
        own = tensors["hidden_states"]
        states = spoiled(result.key, own, None if fresh else self._before)
        metadata = states_metadata(self._settings.provenance, result.key)
        save_file({**tensors, "hidden_states": states.contiguous()}, path, metadata=metadata)
        if self._before is None or len(own) > len(self._before):
            self._before = own
        return results
