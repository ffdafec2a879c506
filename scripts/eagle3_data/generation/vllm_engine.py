"""The vLLM engine that answers: token ids in, token ids out, with continuous batching over conversations at
different turns, and vLLM's prefix caching. vLLM >= 0.26, CUDA or CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import vllm
from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RequestOutputKind

from eagle3_data.engines.vllm.engine import model_arguments, prepare_environment
from eagle3_data.errors import SampleError
from eagle3_data.generation.engine import Generated, Generator, GeneratorSettings


class VllmGenerator(Generator):
    """A seed for each answer, made of what is asked, so that sampled answers do not depend on what else is in
    the batch, as far as vLLM's kernels do not."""

    def __init__(self, settings: GeneratorSettings) -> None:
        super().__init__(settings)
        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__}
        prepare_environment(settings.tensor_parallel)
        self._llm = LLM(**model_arguments(settings, settings.max_length))
        self._engine = self._llm.llm_engine

    def start(self, name: str, prompt: list[int], max_tokens: int, seed: int) -> None:
        settings = self._settings
        parameters = SamplingParams(
            max_tokens=max_tokens,
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            seed=seed if settings.temperature > 0 else None,
            stop_token_ids=list(settings.stop_ids),
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        try:
            self._engine.add_request(name, {"prompt_token_ids": prompt}, parameters)
        except (ValueError, VLLMValidationError) as error:
            raise SampleError("vLLM refuses this prompt") from error

    def advance(self) -> Iterator[Generated]:
        for output in self._engine.step():
            if output.finished:
                yield Generated(output.request_id, tuple(output.outputs[0].token_ids))

    def close(self) -> None:
        self._engine.engine_core.shutdown()
