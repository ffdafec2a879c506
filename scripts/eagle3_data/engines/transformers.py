"""The transformers engine: the plain forward pass everything else is compared with. One sample at a time, any
device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file

from eagle3_data.engines.base import (
    EngineSettings,
    Extracted,
    Rejected,
    Request,
    publish_states,
    states_metadata,
)
from eagle3_data.engines.language_model import decoder_layers, language_model_directory, load_language_model
from eagle3_data.engines.storage import stored_tensors
from eagle3_data.errors import SampleError
from eagle3_data.records import JsonObject


class TransformersEngine:
    """Computes the states of the target's language model with forward hooks on its decoder layers."""

    def __init__(self, settings: EngineSettings) -> None:
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.step_tokens = None
        self._settings = settings
        self._reference = ReferenceModel(
            settings.model_path, getattr(torch, settings.dtype), settings.trust_remote_code
        )
        self._waiting: list[Request] = []

    def submit(self, request: Request) -> None:
        if not 0 < len(request.token_ids) <= self._settings.max_length:
            raise SampleError(
                f"a sample of {len(request.token_ids)} tokens; between 1 and {self._settings.max_length} are"
                " possible"
            )
        if max(request.token_ids) >= self._reference.vocab_size:
            raise SampleError(
                f"token id {max(request.token_ids)} is outside the vocabulary of {self._reference.vocab_size}"
            )
        self._waiting.append(request)

    def step(self) -> list[Extracted | Rejected]:
        request = self._waiting.pop(0)
        states, greedy = self._reference.states(request.token_ids, self._settings.layers)
        stored = stored_tensors(states, self._settings.storage_dtype)
        tensors = {**stored, "token_ids": torch.tensor(request.token_ids)}
        metadata = states_metadata(self._settings.provenance, request.key)
        publish_states(request.states_path, lambda part: save_file(tensors, part, metadata=metadata))
        return [Extracted(request.key, request.states_path, greedy)]

    def close(self) -> None: ...


class ReferenceModel:
    """The language model of a checkpoint in transformers."""

    def __init__(self, path: str, dtype: torch.dtype, trust_remote_code: bool = False) -> None:
        with language_model_directory(Path(path)) as directory:
            self._model: Any = load_language_model(directory, dtype, trust_remote_code)
        self._model.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        self.vocab_size = int(self._model.get_input_embeddings().weight.shape[0])
        self._layers = decoder_layers(self._model)

    @torch.inference_mode()
    def states(self, token_ids: Sequence[int], layers: Sequence[int]) -> tuple[torch.Tensor, int]:
        """States [T, len(layers), H] in the model's dtype, on the CPU, and the greedy next token.

        Layer ids count as everywhere here: k is the residual stream after k decoder layers, before the final
        norm; 0 is what enters the first layer (embeddings, scaled where the architecture scales them).
        """
        captured: dict[int, torch.Tensor] = {}

        def keep(k: int, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            captured[k] = (
                (output if isinstance(output, torch.Tensor) else output[0]).reshape(len(token_ids), -1).cpu()
            )

        def keep_input(_: torch.nn.Module, given: tuple[Any, ...], named: JsonObject) -> None:
            keep(0, given[0] if given else named["hidden_states"])

        hooks = [
            self._layers[k - 1].register_forward_hook(lambda _, __, output, k=k: keep(k, output))
            for k in layers
            if k > 0
        ]
        if 0 in layers:
            hooks.append(self._layers[0].register_forward_pre_hook(keep_input, with_kwargs=True))
        try:
            logits = self._model(
                torch.tensor([token_ids], device=self._model.device), use_cache=False, logits_to_keep=1
            ).logits
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack([captured[k] for k in layers], dim=1), int(logits[0, -1].argmax())
