"""What the workflow must know of the target model, read from its checkpoint directory alone. Standard library
only.

Nothing is loaded: config.json, the names and sizes of the weight files, and hashes of blocks of them. So this
takes seconds for a checkpoint of any size, and every fault of a checkpoint that can be seen on the disk is
named here.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes, hash_json
from eagle3_data.records import read_json

WHOLE_FILE_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
BLOCKS = 16
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "vocab.json")
VOLATILE_CONFIG_KEYS = {"transformers_version", "_name_or_path"}


@dataclass(frozen=True)
class TargetDescription:
    """The record `target.json`. Sizes are those of the language model inside a multimodal wrapper."""

    path: str
    architecture: str
    text_architecture: str
    model_type: str
    num_hidden_layers: int
    hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    quantization: str
    weights_bytes: int
    needs_remote_code: bool
    fingerprint: str

    @classmethod
    def read(cls, path: str | Path) -> TargetDescription:
        record = read_json(path)
        return cls(**{field.name: record[field.name] for field in fields(cls)})

    def as_record(self) -> dict[str, Any]:
        return asdict(self)


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a config.json: `text_config` of a multimodal wrapper, else the whole."""
    inner = config.get("text_config") or config.get("llm_config")
    return inner if isinstance(inner, dict) else config


def architectures_of(config: dict[str, Any]) -> list[str]:
    """The class names a config.json gives, its own or those of its language model; may be empty. Raises
    InputError where they are no list of names."""
    given = config.get("architectures") or text_config(config).get("architectures") or []
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise InputError(
            'config.json: architectures must be a list of class names, such as ["LlamaForCausalLM"], not'
            f" {given!r}"
        )
    return given


def read_model_config(directory: Path) -> dict[str, Any]:
    """config.json of a checkpoint directory. Raises InputError."""
    if not directory.is_dir():
        raise InputError(
            f"target.path: there is no directory {directory}; download the checkpoint there first, or correct"
            " the path"
        )
    path = directory / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{directory} has no config.json, so it is no model checkpoint; target.path must be the directory"
            " that holds it"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as JSON; download the checkpoint again") from error
    if not isinstance(config, dict):
        raise InputError(f"{path} does not hold a JSON object; download the checkpoint again")
    return config


def weight_files(directory: Path) -> list[Path]:
    """The checkpoint's safetensors files in name order. Raises InputError if a file its index names is absent
    or empty."""
    index = directory / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise InputError(f"{index} cannot be read; download the checkpoint again") from error
        files = [directory / name for name in names]
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise InputError(
            f"{directory} holds no safetensors weights; convert the checkpoint to safetensors first"
        )
    if bad := [file.name for file in files if not file.is_file() or file.stat().st_size < 10]:
        told = ", ".join(bad[:5]) + (" ..." if len(bad) > 5 else "")
        raise InputError(
            f"{directory}: {len(bad)} of {len(files)} weight files are missing or empty, download them again:"
            f" {told}"
        )
    return files


def file_fingerprint(path: Path) -> str:
    """Hash of a weight file: of all of it up to 64 MiB, else of its safetensors header and 16 blocks of 1 MiB
    evenly spaced."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE_FILE_BYTES:
            return hash_bytes(file.read())
        header = file.read(8)
        parts = [header, file.read(min(int.from_bytes(header, "little"), size))]
        for block in range(BLOCKS):
            file.seek(block * (size - BLOCK_BYTES) // (BLOCKS - 1))
            parts.append(file.read(BLOCK_BYTES))
    return hash_bytes(*parts)


def fingerprint_of(directory: str | Path) -> str:
    """What identifies the checkpoint in `directory`: its config.json, weights and Python code, wherever it
    lies. Reads up to 16 MiB a weight file over 64 MiB. Raises InputError.

    Two directories of one fingerprint give the same hidden states; a directory whose fingerprint changed is
    another model.
    """
    directory = Path(directory)
    config = read_model_config(directory)
    files = weight_files(directory)
    code = sorted(directory.glob("*.py"))
    return hash_json(
        {
            "config": {key: value for key, value in config.items() if key not in VOLATILE_CONFIG_KEYS},
            "weights": [[file.name, file.stat().st_size, file_fingerprint(file)] for file in files],
            "code": [[file.name, hash_bytes(file.read_bytes())] for file in code],
        }
    )


def describe_target(path: str) -> TargetDescription:
    """Describe the checkpoint in directory `path`. Raises InputError naming what is missing and what to
    do."""
    directory = Path(path)
    config = read_model_config(directory)
    text = text_config(config)
    absent = [
        key
        for key in ("num_hidden_layers", "hidden_size", "vocab_size")
        if not isinstance(text.get(key), int)
    ]
    if absent:
        raise InputError(
            f"{directory}/config.json lacks {', '.join(absent)} (looked in text_config where there is one);"
            " this is not a decoder language model's checkpoint"
        )
    files = weight_files(directory)
    if not any((directory / name).exists() for name in TOKENIZER_FILES):
        raise InputError(
            f"{directory} has no tokenizer ({', '.join(TOKENIZER_FILES)}); copy the model's tokenizer files"
            " there"
        )
    architectures = architectures_of(config) or ["unknown"]
    quantization = text.get("quantization_config") or config.get("quantization_config") or {}
    return TargetDescription(
        path=str(path),
        architecture=architectures[0],
        text_architecture=(architectures_of(text) or architectures)[0],
        model_type=str(config.get("model_type", "unknown")),
        num_hidden_layers=text["num_hidden_layers"],
        hidden_size=text["hidden_size"],
        vocab_size=text["vocab_size"],
        max_position_embeddings=int(text.get("max_position_embeddings") or 0),
        quantization=str(quantization.get("quant_method", "none")),
        weights_bytes=sum(file.stat().st_size for file in files),
        needs_remote_code="auto_map" in config,
        fingerprint=fingerprint_of(directory),
    )
