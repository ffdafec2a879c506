"""The vLLM engine: vLLM's own `extract_hidden_states` speculative method with our connector. vLLM >= 0.26,
CUDA or CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import torch
import vllm
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.platforms import current_platform

from eagle3_data.engines.base import EngineSettings, Extracted, Rejected, Request
from eagle3_data.errors import EngineError, SampleError
from eagle3_data.records import JsonObject
from eagle3_data.target import read_model_config, text_config

PREFILL: JsonObject = {
    # Compiling and capturing CUDA graphs cost a minute and more at every load, and save the launch of
    # kernels, which steps of thousands of tokens hide.
    "enforce_eager": True,
    # A step of 16,384 tokens is 256 samples of 64. vLLM's 1,024 on large GPUs would cost memory for as many
    # rows of logits: 0.5 GB with a vocabulary of 128,256.
    "max_num_seqs": 256,
}
"""Engine arguments for prefill alone, where the user sets none. `max_num_batched_tokens` is left to vLLM,
which knows the device (16,384 on GPUs of 70 GiB and more but the A100, else 8,192), and so is
`gpu_memory_utilization`, since a cache of more than a few steps is of no use."""


class VllmEngine:
    """Prefill of whole samples with continuous feeding: requests join the running batch as soon as they are
    submitted."""

    def __init__(self, settings: EngineSettings) -> None:
        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__}
        prepare_environment(settings.tensor_parallel)
        self._llm = LLM(**llm_arguments(settings))
        self._engine = self._llm.llm_engine
        self.step_tokens: int | None = self._engine.vllm_config.scheduler_config.max_num_batched_tokens

    def submit(self, request: Request) -> None:
        parameters = SamplingParams(
            max_tokens=1,
            temperature=0.0,
            detokenize=False,
            skip_reading_prefix_cache=request.fresh,
            extra_args={"kv_transfer_params": {"hidden_states_path": request.states_path}},
        )
        try:
            self._engine.add_request(request.key, {"prompt_token_ids": list(request.token_ids)}, parameters)
        except (
            ValueError,
            VLLMValidationError,
        ) as error:  # too long, a token outside the vocabulary; not a ValueError since vLLM 0.32
            raise SampleError("vLLM refuses this sample") from error

    def step(self) -> list[Extracted | Rejected]:
        return [_result(output) for output in self._engine.step() if output.finished]

    def close(self) -> None:
        self._engine.engine_core.shutdown()


def _result(output: Any) -> Extracted:
    path = (output.kv_transfer_params or {}).get("hidden_states_path")
    if not path:
        raise EngineError(
            f"vLLM finished request {output.request_id} without a path of hidden states; is the connector"
            " loaded?"
        )
    return Extracted(key=output.request_id, states_path=path, greedy_token=output.outputs[0].token_ids[0])


class LoadSettings(Protocol):
    """How vLLM loads a target, whatever it then does with it."""

    @property
    def model_path(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def tensor_parallel(self) -> int: ...

    @property
    def max_length(self) -> int: ...

    @property
    def trust_remote_code(self) -> bool: ...

    @property
    def arguments(self) -> JsonObject: ...


def model_arguments(settings: LoadSettings, max_model_len: int) -> JsonObject:
    """The arguments of `vllm.LLM` by which it loads the target: the user's engine arguments plus those the
    workflow owns."""
    config = read_model_config(Path(settings.model_path))
    text = text_config(config)
    arguments = {
        "skip_tokenizer_init": (
            True
        ),  # samples are token ids; a tokenizer would only bring remote code and load time
        **({"language_model_only": True} if text is not config or "vision_config" in config else {}),
        **settings.arguments,
    }
    if current_platform.is_cpu() and "kv_lora_rank" in text:
        # Without AMX, vLLM's CPU backend turns chunked prefill off for MLA models but still schedules only so
        # many tokens a step: a longer sample would wait forever, without an error (0.32).
        arguments["max_num_batched_tokens"] = max(
            arguments.get("max_num_batched_tokens", 0), settings.max_length + 1, 4096
        )
    return {
        **arguments,
        "model": settings.model_path,
        "dtype": settings.dtype,
        "tensor_parallel_size": settings.tensor_parallel,
        "max_model_len": max_model_len,
        "trust_remote_code": settings.trust_remote_code,
    }


def llm_arguments(settings: EngineSettings) -> JsonObject:
    """All arguments of `vllm.LLM` for extraction."""
    arguments = model_arguments(settings, settings.max_length + 1)  # vLLM wants room for one generated token
    sequences: int = PREFILL["max_num_seqs"]
    return {
        **PREFILL,
        # vLLM refuses more sequences than a step has tokens
        "max_num_seqs": min(sequences, arguments.get("max_num_batched_tokens") or sequences),
        **arguments,
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(settings.layers)}},
        },
        "kv_transfer_config": {
            "kv_connector": "HiddenStatesConnector",
            "kv_connector_module_path": "eagle3_data.engines.vllm.connector",
            "kv_role": "kv_producer",
            "kv_connector_extra_config": {
                "shared_storage_path": settings.states_root,
                "allow_custom_save_path": True,
                "use_synchronization_lock": False,
                "provenance": settings.provenance,
                "storage_dtype": settings.storage_dtype,
            },
        },
    }


def prepare_environment(tensor_parallel: int) -> None:
    """Variables vLLM reads when it starts its processes. Those the user set stay."""
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if not current_platform.is_cpu():
        return
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    if tensor_parallel > 1:
        cores = sorted(os.sched_getaffinity(0))
        binding = "|".join(str(cores[rank % len(cores)]) for rank in range(tensor_parallel))
        os.environ.setdefault(
            "VLLM_CPU_OMP_THREADS_BIND", binding
        )  # vLLM otherwise wants one NUMA node a worker
