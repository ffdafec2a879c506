"""Our KV connector: vLLM's ExampleHiddenStatesConnector with a completion signal, provenance, states in eight
bits, and CPU support.

vLLM's own connector hands out a path before anything is written there, only logs a write error, and needs
CUDA. Ours publishes each file by a rename, or an error file beside it
(`eagle3_data.engines.base.publish_states`), and copies a step earlier. Loaded by vLLM in the scheduler's and
the workers' processes (`kv_connector_module_path`). Works with vLLM 0.26 and newer.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)

from eagle3_data.engines.base import publish_states, states_metadata
from eagle3_data.engines.storage import stored_tensors


class _Copied:
    """Stands in for a CUDA event where the copy is finished as soon as it returns."""

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True


class HiddenStatesConnector(ExampleHiddenStatesConnector):
    """Writes `hidden_states` [T, L, H] and `token_ids` [T] of each finished request to the path in its
    `kv_transfer_params`, only below `shared_storage_path`; in eight bits, also their scales."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._root = Path(self._storage_path).resolve()
        self._provenance: dict[str, str] = self._kv_transfer_config.get_from_extra_config("provenance", {})
        self._storage_dtype: str = self._kv_transfer_config.get_from_extra_config("storage_dtype", "same")

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        meta = super().build_connector_meta(scheduler_output)
        for filename in meta.new_req_filenames.values():
            if not Path(filename).resolve().is_relative_to(self._root):
                raise ValueError(f"hidden states are only written below {self._root}, not to {filename}")
        return meta

    def bind_connector_metadata(self, connector_metadata: Any) -> None:
        """Called when a step begins. What is to be saved in it was computed in earlier ones, so its copy need
        not wait for this step's forward pass, as vLLM's own does."""
        super().bind_connector_metadata(connector_metadata)
        if self._on_gpu:
            self._get_copy_stream().wait_stream(torch.cuda.current_stream())

    @property
    def _on_gpu(self) -> bool:
        return self._kv_cache is not None and self._kv_cache.is_cuda

    def _submit_async_write(self, pending: PendingSave) -> None:
        """Called once the step's forward pass is under way, which on a GPU it is without us; on the CPU the
        blocks are freed when this returns. So the copy is made or queued here, and written elsewhere."""
        if not self._is_tp_rank_zero:
            return
        assert self._kv_cache is not None
        blocks = torch.tensor(pending.block_ids, dtype=torch.long)
        slots = (blocks[:, None] * self._block_size + torch.arange(self._block_size)).flatten()
        event: Any = _Copied()
        with self._copying():
            if self._on_gpu:
                slots = slots.pin_memory().to(self._kv_cache.device, non_blocking=True)
            states = extract_from_kv_cache(self._kv_cache, slots, pending.token_ids.shape[0])
            stored = stored_tensors(states, self._storage_dtype)
            tensors = {name: _on_host(one) for name, one in stored.items()}
            if self._on_gpu:
                event = torch.cuda.Event(blocking=True)  # else all writers spin until it comes
                event.record()
        tensors["token_ids"] = pending.token_ids.clone()
        future = self._executor.submit(self._write_tensors, tensors, event, pending.filename, None)
        self._req_copy_events[pending.req_id] = event
        self._req_futures[pending.req_id] = future
        future.add_done_callback(partial(self._on_write_done, pending.req_id))

    def _copying(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._get_copy_stream()) if self._on_gpu else nullcontext()

    def _write_tensors(
        self, tensors: dict[str, torch.Tensor], event: Any, filename: str, lock_fd: int | None
    ) -> None:  # type: ignore[override]
        """Runs in the writer pool. The base class's is static; it is always called through the instance."""

        def write(part: str) -> None:
            event.synchronize()
            save_file(tensors, part, metadata=states_metadata(self._provenance, Path(filename).stem))

        publish_states(filename, write)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """In the host's memory; what is on a GPU is there when its stream has come so far."""
    if not tensor.is_cuda:
        return tensor
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
