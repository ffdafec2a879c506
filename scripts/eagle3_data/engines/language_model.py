"""The language model of a checkpoint in transformers: which class, from which part of the checkpoint, and its
parts.

A multimodal wrapper that transformers knows is taken whole, by its own class. Of any other wrapper
(Kimi-K2.5) the language model is taken alone: its text_config, and the weights under `language_model.`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from eagle3_data.errors import EngineError
from eagle3_data.records import JsonObject
from eagle3_data.target import read_model_config, text_config, weight_files

WRAPPED = "language_model."
"""Prefix of the language model's weights in the checkpoint of a wrapper that transformers does not know."""


def language_model_class(config: JsonObject) -> Any:
    """The class of transformers for the architecture a config.json names: model types it does not know
    (`kimi_k2`) may still name an architecture it does (`DeepseekV3ForCausalLM`). None: let transformers' auto
    classes decide."""
    architectures = config.get("architectures") or [""]
    found = getattr(transformers, str(architectures[0]), None)
    return found if hasattr(found, "generate") else None


def language_model_config(config: JsonObject) -> JsonObject:
    """The config.json of the model that transformers builds: the whole, or the text part of a wrapper that it
    does not know. Where the text part does not say whether its head is tied, the wrapper does."""
    text = text_config(config)
    if text is config or language_model_class(config):
        return config
    tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
    return {**tied, **text}


def load_language_model(directory: Path, dtype: torch.dtype, trust_remote_code: bool) -> Any:
    """The model with its weights, from a directory that `language_model_directory` gives."""
    if cls := language_model_class(read_model_config(directory)):
        return cls.from_pretrained(directory, config=_config_of(cls, directory), dtype=dtype)
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, trust_remote_code=trust_remote_code
    )


def make_language_model(directory: Path, trust_remote_code: bool) -> Any:
    """The float32 model of a directory's config.json, with fresh weights."""
    if cls := language_model_class(read_model_config(directory)):
        return cls(_config_of(cls, directory))
    config = transformers.AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    return transformers.AutoModelForCausalLM.from_config(
        config, trust_remote_code=trust_remote_code, dtype=torch.float32
    )


def language_model_without_weights(directory: Path, trust_remote_code: bool) -> Any:
    """The float32 model of a checkpoint, without memory for its weights."""
    part_config = language_model_config(read_model_config(directory))
    with torch.device("meta"):
        if (
            language_model_class(part_config) is None
        ):  # the auto classes look for remote code beside config.json
            return make_language_model(directory, trust_remote_code).eval()
        with tempfile.TemporaryDirectory() as part:
            (Path(part) / "config.json").write_text(json.dumps(part_config), encoding="utf-8")
            return make_language_model(Path(part), trust_remote_code).eval()


def is_wrapped(directory: Path) -> bool:
    """Whether the checkpoint is of a wrapper that transformers does not know, so that the language model's
    weights are those under `WRAPPED`."""
    config = read_model_config(directory)
    return language_model_config(config) is not config


def _config_of(cls: Any, directory: Path) -> Any:
    config = cls.config_class.from_pretrained(directory)
    config.model_type = cls.config_class.model_type  # it decides how experts are laid out in the checkpoint
    return config


def decoder_layers(model: Any) -> torch.nn.ModuleList:
    """The list of the decoder layers, whatever its name: in the decoder, of as many modules as there are
    layers, nearest to its root. Raises EngineError where there is no such list or more than one."""
    wanted = model.config.get_text_config(decoder=True).num_hidden_layers
    lists = [
        (name.count("."), module)
        for name, module in model.get_decoder().named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == wanted
    ]
    nearest = min((depth for depth, _ in lists), default=0)
    found = [module for depth, module in lists if depth == nearest]
    if len(found) != 1:
        raise EngineError(
            f"{type(model).__name__} of transformers has {len(found)} lists of {wanted} decoder layers;"
            " exactly one is needed to find its layers"
        )
    return found[0]


@contextmanager
def language_model_directory(directory: Path) -> Iterator[Path]:
    """A directory from which transformers loads the language model of a checkpoint.

    The checkpoint itself, or for a wrapper that transformers does not know a temporary copy of the language
    model's part: its text_config, and the weights under `language_model.` without that prefix.
    """
    config = read_model_config(directory)
    part_config = language_model_config(config)
    if part_config is config:
        yield directory
        return
    with tempfile.TemporaryDirectory() as temporary:
        part = Path(temporary)
        (part / "config.json").write_text(json.dumps(part_config), encoding="utf-8")
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
