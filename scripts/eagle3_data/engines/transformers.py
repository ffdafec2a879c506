"""The transformers engine: the plain forward pass everything else is compared with. One sample at a time, any
device."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from eagle3_data.engines.base import (
    EngineSettings,
    Extracted,
    Rejected,
    Request,
    publish_states,
    states_metadata,
)
from eagle3_data.errors import EngineError, SampleError
from eagle3_data.target import read_model_config, text_config, weight_files

WRAPPED = "language_model."
"""Prefix of the language model's weights in a multimodal wrapper's checkpoint (Kimi-K2.5, LLaVA)."""


class TransformersEngine:
    """Computes the states of the target's language model with forward hooks on its decoder layers."""

    def __init__(self, settings: EngineSettings) -> None:
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
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
        tensors = {"hidden_states": states.contiguous(), "token_ids": torch.tensor(request.token_ids)}
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
        self._layers = _decoder_layers(self._model)

    @torch.inference_mode()
    def states(self, token_ids: Sequence[int], layers: Sequence[int]) -> tuple[torch.Tensor, int]:
        """States [T, len(layers), H] in the model's dtype, on the CPU, and the greedy next token.

        Layer ids count as everywhere here: k is the residual stream after k decoder layers, before the final
        norm.
        """
        captured: dict[int, torch.Tensor] = {}

        def keep(k: int, output: torch.Tensor | tuple[torch.Tensor, ...]) -> None:
            captured[k] = (
                (output if isinstance(output, torch.Tensor) else output[0]).reshape(len(token_ids), -1).cpu()
            )

        hooks = [
            self._layers[k - 1].register_forward_hook(lambda _, __, output, k=k: keep(k, output))
            for k in layers
            if k > 0
        ]
        if 0 in layers:
            hooks.append(
                self._model.get_input_embeddings().register_forward_hook(
                    lambda _, __, output: keep(0, output)
                )
            )
        try:
            logits = self._model(
                torch.tensor([token_ids], device=self._model.device), use_cache=False, logits_to_keep=1
            ).logits
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack([captured[k] for k in layers], dim=1), int(logits[0, -1].argmax())


def language_model_class(directory: Path) -> Any:
    """The class of transformers for the architecture in config.json: model types it does not know (`kimi_k2`)
    may still name an architecture it does (`DeepseekV3ForCausalLM`). None: let transformers' auto classes
    decide."""
    architectures = read_model_config(directory).get("architectures") or [""]
    return getattr(transformers, architectures[0], None)


def _config_of(cls: Any, directory: Path) -> Any:
    config = cls.config_class.from_pretrained(directory)
    config.model_type = cls.config_class.model_type  # it decides how experts are laid out in the checkpoint
    return config


def load_language_model(directory: Path, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    if cls := language_model_class(directory):
        return cls.from_pretrained(directory, config=_config_of(cls, directory), dtype=dtype)
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, trust_remote_code=trust_remote_code
    )


def make_language_model(directory: Path, trust_remote_code: bool) -> Any:
    """The float32 model of a directory's config.json, with fresh weights."""
    if cls := language_model_class(directory):
        return cls(_config_of(cls, directory))
    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    return transformers.AutoModelForCausalLM.from_config(
        config, trust_remote_code=trust_remote_code, dtype=torch.float32
    )


def _decoder_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    wanted: Any = getattr(model.config, "num_hidden_layers", None)
    found = [
        module
        for name, module in model.named_modules()
        if name.endswith("layers") and isinstance(module, torch.nn.ModuleList) and len(module) == wanted
    ]
    if len(found) != 1:
        raise EngineError(
            f"{type(model).__name__} has {len(found)} lists of {wanted} decoder layers; the transformers"
            " engine needs exactly one"
        )
    return found[0]


@contextmanager
def language_model_directory(directory: Path) -> Iterator[Path]:
    """A directory from which AutoModelForCausalLM loads the language model of a checkpoint.

    The checkpoint itself, or for a multimodal wrapper a temporary copy of the language model's part: its
    text_config, and the weights under `language_model.` without that prefix.
    """
    config = read_model_config(directory)
    text = text_config(config)
    if text is config:
        yield directory
        return
    with tempfile.TemporaryDirectory() as temporary:
        part = Path(temporary)
        (part / "config.json").write_text(json.dumps(text), encoding="utf-8")
        for file in weight_files(directory):
            tensors = load_file(file)
            inner = {
                name.removeprefix(WRAPPED): tensor
                for name, tensor in tensors.items()
                if name.startswith(WRAPPED)
            }
            if inner:
                save_file(inner, part / file.name, metadata={"format": "pt"})
        index = directory / "model.safetensors.index.json"
        if index.exists():
            weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            inner_map = {
                name.removeprefix(WRAPPED): file
                for name, file in weight_map.items()
                if name.startswith(WRAPPED)
            }
            (part / index.name).write_text(
                json.dumps({"metadata": {}, "weight_map": inner_map}), encoding="utf-8"
            )
        yield part
