"""What the workflow needs to know about the target model, read from its checkpoint directory.

Nothing is loaded: config.json, the names, sizes and headers of the weight files, and hashes of blocks of
them. So this takes seconds for a checkpoint of any size, and every fault of a checkpoint that can be seen on
the disk is named here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes, hash_json
from eagle3_data.records import JsonObject, Record
from eagle3_data.target.locate import locate_target
from eagle3_data.target.weights import LARGEST_HEADER, is_lfs_pointer, weight_problems

WHOLE_FILE_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
BLOCKS = 16
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer.model", "tiktoken.model", "*.tiktoken", "tekken.json", "vocab.json",
    "spiece.model",
)  # fmt: skip
"""Any of these is a tokenizer that transformers loads; file names or patterns."""
TOKENIZER_SETTINGS = (
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json"
)  # fmt: skip
SIZES = ("num_hidden_layers", "hidden_size", "vocab_size")
VOLATILE_CONFIG_KEYS = {"transformers_version", "_name_or_path"}
SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class TargetDescription(Record):
    """The record `target.json`. Sizes are those of the language model inside a multimodal wrapper."""

    on_damage: ClassVar[str] = "delete it and run the same command again, which describes the target again"

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
    resolved_path: str = ""
    """Where the checkpoint really lay when it was described: `path` may lead through links."""


def text_config(config: JsonObject) -> JsonObject:
    """The language model's part of a config.json: `text_config` of a multimodal wrapper, else the whole."""
    inner = config.get("text_config") or config.get("llm_config")
    return inner if isinstance(inner, dict) else config


def architectures_of(config: JsonObject) -> list[str]:
    """The class names a config.json gives, its own or those of its language model; may be empty. Raises
    InputError if they are not a list of names."""
    given = config.get("architectures") or text_config(config).get("architectures") or []
    if not isinstance(given, list) or not all(
        isinstance(name, str) and name.isidentifier() for name in given
    ):
        raise InputError(
            'config.json: architectures must be a list of class names, such as ["LlamaForCausalLM"], not'
            f" {given!r}"
        )
    return given


def read_model_config(directory: Path) -> JsonObject:
    """config.json of a checkpoint directory. Raises InputError."""
    try:
        names = set(os.listdir(directory))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise InputError(
            f"target.path: there is no directory {directory}; download the checkpoint there first, or correct"
            " the path"
        ) from None
    except OSError as error:
        raise _unreadable(directory, error) from error
    path = directory / "config.json"
    if "config.json" not in names:
        if "params.json" in names:
            raise InputError(
                f"{directory} is in Mistral's own format (params.json, no config.json), which"
                " transformers does not read; use the checkpoint in transformers' format, with a config.json"
            )
        raise InputError(
            f"{directory} has no config.json, so it is not a model checkpoint; target.path must be the"
            " directory that contains it"
        )
    return read_json_object(path)


def read_json_object(path: Path) -> JsonObject:
    """A JSON file of a checkpoint. Raises InputError naming the file, what is wrong, and what to do."""
    if not path.is_file():  # also rejects a pipe, on which reading would block
        raise InputError(f"{path} is not a file; download the checkpoint again")
    try:
        if is_lfs_pointer(path):
            raise InputError(f"{path} is a git-lfs pointer, not the file itself; run `git lfs pull`")
        value = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair can be written nowhere
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON; download the checkpoint again") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} does not hold a JSON object; download the checkpoint again")
    return value


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path} cannot be read ({error.strerror}); check its permissions")


def read_weight_map(directory: Path) -> dict[str, str] | None:
    """The index of a checkpoint: the weight file of each tensor by its name; None where there is no index.
    Raises InputError."""
    path = directory / INDEX
    if not os.path.lexists(path):
        return None
    weight_map = read_json_object(path).get("weight_map")
    if (
        not isinstance(weight_map, dict)
        or not weight_map
        or not all(isinstance(name, str) and name for name in weight_map.values())
    ):
        raise InputError(
            f"{path}: weight_map must name the weight file of each tensor; download the index again"
        )
    return weight_map


def weight_files(directory: Path) -> list[Path]:
    """The checkpoint's safetensors files in name order. Raises InputError if a file its index names is absent
    or empty."""
    weight_map = read_weight_map(directory)
    if weight_map is None:
        files = sorted(directory.glob("*.safetensors"))
    else:
        files = [directory / name for name in sorted(set(weight_map.values()))]
    if not files:
        raise InputError(
            f"{directory} holds no safetensors weights; convert the checkpoint to safetensors first"
        )
    if bad := [file.name for file in files if not os.path.isfile(file) or file.stat().st_size < 10]:
        raise InputError(
            f"{directory}: {len(bad)} of {len(files)} weight files are missing or empty, download them again:"
            f" {_first_of(bad, ', ')}"
        )
    return files


def check_weights(directory: Path) -> None:
    """Raises InputError naming each weight file that is cut short, damaged, or not what the index says."""
    files, weight_map = weight_files(directory), read_weight_map(directory)
    try:
        problems = weight_problems(files, weight_map)
    except OSError as error:
        raise _unreadable(Path(error.filename or directory), error) from error
    if problems:
        raise InputError(f"{directory}: {_first_of(problems, '; ')}; download what is named here again")


def check_tokenizer_files(directory: Path) -> None:
    """Raises InputError where there is no tokenizer, or a file of it cannot be read."""
    found = [path for pattern in TOKENIZER_FILES for path in sorted(directory.glob(pattern))]
    if not found:
        raise InputError(
            f"{directory} has no tokenizer ({', '.join(TOKENIZER_FILES)}); copy the model's tokenizer files"
            " there"
        )
    settings = (directory / name for name in TOKENIZER_SETTINGS)
    for path in (*found, *(path for path in settings if os.path.lexists(path))):
        if path.suffix == ".json":
            read_json_object(path)
            continue
        try:
            if not path.is_file() or not path.stat().st_size:
                raise InputError(f"{path} is empty or not a file; download the checkpoint again")
            if is_lfs_pointer(path):
                raise InputError(f"{path} is a git-lfs pointer, not the file itself; run `git lfs pull`")
        except OSError as error:
            raise _unreadable(path, error) from error


def _first_of(texts: list[str], separator: str) -> str:
    return separator.join(texts[:SHOWN_PROBLEMS]) + (" ..." if len(texts) > SHOWN_PROBLEMS else "")


def file_fingerprint(path: Path) -> str:
    """Hash of a weight file: of all of it up to 64 MiB, else of its safetensors header and 16 blocks of 1 MiB
    evenly spaced."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE_FILE_BYTES:
            return hash_bytes(file.read())
        header = file.read(8)
        parts = [header, file.read(min(int.from_bytes(header, "little"), size, LARGEST_HEADER))]
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
    try:
        weights = [
            [file.name, file.stat().st_size, file_fingerprint(file)] for file in weight_files(directory)
        ]
        code = [[file.name, hash_bytes(file.read_bytes())] for file in sorted(directory.glob("*.py"))]
    except OSError as error:
        raise _unreadable(Path(error.filename or directory), error) from error
    kept = {key: value for key, value in config.items() if key not in VOLATILE_CONFIG_KEYS}
    return hash_json({"config": kept, "weights": weights, "code": code})


def require_described(description: TargetDescription, record: Path) -> None:
    """Raises InputError where the directory no longer holds the checkpoint that `record` describes: states of
    two checkpoints must never meet under one fingerprint. Reads what `fingerprint_of` reads."""
    if fingerprint_of(description.path) != description.fingerprint:
        raise InputError(
            f"{description.path} ({os.path.realpath(description.path)}) no longer holds the checkpoint that"
            f" {record} describes: its files were replaced, or a link leads elsewhere. To use what is there"
            f" now, delete {record} and run the same command again: the target is described again, and its"
            " states are extracted. Otherwise put the described checkpoint back"
        )


def describe_target(path: str) -> TargetDescription:
    """Describe the checkpoint that `path` means. Raises InputError naming what is wrong and what to do."""
    directory = locate_target(path)
    config = read_model_config(directory)
    text = text_config(config)
    layers, hidden_size, vocab_size = (_size(directory, text, key) for key in SIZES)
    architectures = architectures_of(config) or ["unknown"]
    check_tokenizer_files(directory)
    check_weights(directory)
    return TargetDescription(
        path=str(directory),
        resolved_path=os.path.realpath(directory),
        architecture=architectures[0],
        text_architecture=(architectures_of(text) or architectures)[0],
        model_type=str(config.get("model_type", "unknown")),
        num_hidden_layers=layers,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=max_positions(text),
        quantization=_quantization(config),
        weights_bytes=sum(file.stat().st_size for file in weight_files(directory)),
        needs_remote_code="auto_map" in config,
        fingerprint=fingerprint_of(directory),
    )


def _size(directory: Path, text: JsonObject, key: str) -> int:
    value = text.get(key)
    if value is None:
        raise InputError(
            f"{directory}/config.json lacks {key} (looked in text_config where there is one); this is not a"
            " decoder language model's checkpoint"
        )
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{directory}/config.json: {key} must be a whole number from 1 on, not {value!r}")
    return value


def max_positions(text: JsonObject) -> int:
    """`max_position_embeddings` of a language model's configuration, 0 where it does not say. Raises
    InputError."""
    value = text.get("max_position_embeddings") or 0
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(f"config.json: max_position_embeddings must be a whole number, not {value!r}")
    return value


def _quantization(config: JsonObject) -> str:
    given = text_config(config).get("quantization_config") or config.get("quantization_config") or {}
    if not isinstance(given, dict):
        raise InputError(
            f"config.json: quantization_config must be an object with quant_method, not {given!r}; download"
            " config.json again"
        )
    return str(given.get("quant_method", "none"))
