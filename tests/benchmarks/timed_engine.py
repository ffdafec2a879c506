"""The vLLM engine and its connectors, ours and vLLM's own, with timers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from locking_connector import LockingConnector
from timers import timed
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
)
from vllm.platforms import current_platform

from eagle3_data.engines.base import EngineSettings, Request
from eagle3_data.engines.vllm import engine as vllm_engine
from eagle3_data.engines.vllm.connector import HiddenStatesConnector

llm_arguments = vllm_engine.llm_arguments


def timed_arguments(settings: EngineSettings, connector: str = "TimedConnector") -> dict[str, Any]:
    """The arguments of `vllm.LLM` for extraction with a connector of this module."""
    arguments = llm_arguments(settings)
    arguments["kv_transfer_config"] |= {
        "kv_connector": connector,
        "kv_connector_module_path": "timed_engine",
    }
    return arguments


class TimedEngine(vllm_engine.VllmEngine):
    def __init__(self, settings: EngineSettings) -> None:
        vllm_engine.llm_arguments = timed_arguments
        super().__init__(settings)

    def submit(self, request: Request) -> None:
        with timed("hand over"):
            super().submit(request)

    def step(self) -> Sequence[Any]:
        with timed("wait for a step"):
            return super().step()


class Timers:
    """What both connectors have timed."""

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        with timed("schedule", tokens=scheduler_output.total_num_scheduled_tokens):
            return super().build_connector_meta(scheduler_output)  # type: ignore[misc]

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        with timed("submit copies"):
            return super().get_finished(finished_req_ids)  # type: ignore[misc]

    def _write_tensors(self, tensors: Any, event: Any, filename: str, lock_fd: int | None) -> None:
        with timed("wait for the copy"):
            event.synchronize()
        with timed("write"):
            super()._write_tensors(tensors, event, filename, lock_fd)  # type: ignore[misc]


class TimedConnector(Timers, HiddenStatesConnector):
    """Ours."""


class TimedStockConnector(
    Timers, LockingConnector if current_platform.is_cpu() else ExampleHiddenStatesConnector
):  # type: ignore[misc]
    """vLLM's own; on the CPU, where it does not run, ours with its lock files."""
