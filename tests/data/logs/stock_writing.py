"""For reproduce.py: our connector's copy for CPUs with the stock connector's writing, which only logs what
goes wrong."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
)

from eagle3_data.engines.vllm.connector import HiddenStatesConnector


class StockWriting(HiddenStatesConnector):
    _write_tensors = staticmethod(ExampleHiddenStatesConnector._write_tensors)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        return ExampleHiddenStatesConnector.build_connector_meta(self, scheduler_output)
