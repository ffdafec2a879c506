"""The real vLLM engine with the faults of company_faults, most of them in its connector."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from company_faults import asked_for, spoiled
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    PendingSave,
    extract_from_kv_cache,
)

from eagle3_data.engines.base import EngineSettings
from eagle3_data.engines.vllm import engine
from eagle3_data.engines.vllm.connector import HiddenStatesConnector
from eagle3_data.records import JsonObject


class SpoilingConnector(HiddenStatesConnector):
    """Spoils the cached states themselves, as a fault in the engine does: who reads them from the cache again
    gets what was stored."""

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        metadata = self._get_connector_metadata() if self.has_connector_metadata() else None
        pending = list(getattr(metadata, "pending_saves", ()))
        cached = [self._cached(one) for one in pending]
        for one, (slots, states) in zip(pending, cached, strict=True):
            others = [other for _, other in cached if other is not states]
            company = max(others, key=len, default=None)
            key = Path(one.filename).stem
            self._kv_cache[slots // self._block_size, :, slots % self._block_size] = spoiled(
                key, states, company
            )
        return super().get_finished(finished_req_ids)

    def _cached(self, pending: PendingSave) -> tuple[torch.Tensor, torch.Tensor]:
        """The places in the cache [T] and the states [T, L, H] of a finished request."""
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        slots = slots[: len(pending.token_ids)]
        return slots, extract_from_kv_cache(self._kv_cache, slots, len(slots)).clone()


class SpoilingVllmEngine(engine.VllmEngine):
    def __init__(self, settings: EngineSettings) -> None:
        plain = engine.llm_arguments

        def llm_arguments(settings: EngineSettings) -> JsonObject:
            arguments = plain(settings)
            arguments["kv_transfer_config"] |= {
                "kv_connector": SpoilingConnector.__name__,
                "kv_connector_module_path": __name__,
            }
            return arguments

        engine.llm_arguments = llm_arguments
        super().__init__(asked_for(settings))
