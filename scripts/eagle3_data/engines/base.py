"""What an engine is, and the messages it exchanges with the supervisor. Standard library only.

An engine lives in a process of its own (`eagle3_data.engines.child`). It is handed requests one by one and
returns each exactly once, in any order. It writes the states itself, to the path named in the request: the
file appears there complete, by a rename, or `<path>.error` appears with the reason.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from eagle3_data.dtypes import stored_dtype
from eagle3_data.errors import ConfigError
from eagle3_data.records import JsonObject
from eagle3_data.records.failures import Failure, describe_exception
from eagle3_data.system.modes import follow_umask


class ModelSettings(Protocol):
    """What every engine is told: its class, as `module:Class`, and the directory of the target."""

    @property
    def engine(self) -> str: ...

    @property
    def model_path(self) -> str: ...


@dataclass(frozen=True)
class EngineSettings:
    """Everything an engine that extracts is built from. `layers` are in vLLM's convention, ascending."""

    engine: str
    model_path: str
    layers: tuple[int, ...]
    dtype: str
    tensor_parallel: int
    max_length: int
    trust_remote_code: bool
    states_root: str
    provenance: dict[str, str] = field(default_factory=dict)
    arguments: JsonObject = field(default_factory=dict)
    storage_dtype: str = "same"
    """`extraction.storage_dtype`: how the engine writes its states."""

    @property
    def stored_dtype(self) -> str:
        """The data type of the states in their files."""
        return stored_dtype(self.dtype, self.storage_dtype)


@dataclass(frozen=True)
class Work:
    """What an engine is given to do for one sample."""

    key: str
    token_ids: tuple[int, ...]

    @property
    def cost(self) -> int:
        """What the bound of what is in flight counts."""
        return len(self.token_ids)


@dataclass(frozen=True)
class Request(Work):
    """One sample to extract: its token ids and where its states go (below `EngineSettings.states_root`).
    `fresh`: every token is to be computed, whatever the engine has in a cache."""

    states_path: str
    fresh: bool = False


@dataclass(frozen=True)
class Ready:
    """The engine is loaded. `versions` names the packages that compute the numbers, `kernels` what its log
    says it chose to compute with: model runner, attention backend, kernels. `step_tokens`: see `Engine`.
    `import_s` of `load_s` went by before the engine began to load: its Python packages."""

    versions: dict[str, str]
    load_s: float
    import_s: float = 0.0
    kernels: tuple[str, ...] = ()
    step_tokens: int | None = None


@dataclass(frozen=True)
class Done:
    """The engine is done with a request."""

    key: str


@dataclass(frozen=True)
class Extracted(Done):
    """The file may still be on its way; `greedy_token` is the model's next token."""

    states_path: str
    greedy_token: int


@dataclass(frozen=True)
class Rejected(Done):
    """This request failed, the engine lives on."""

    failure: Failure


@dataclass(frozen=True)
class Alive:
    """The engine computes, though nothing is done yet."""


@dataclass(frozen=True)
class Fatal:
    """The engine cannot continue (or could not start)."""

    failure: Failure


class Engine(Protocol):
    """See the module's text. The constructor loads the model and raises whatever went wrong. `step_tokens` is
    how many tokens it computes in one step at most, so that a longer sample takes several; None where any
    sample is computed at once."""

    versions: dict[str, str]
    step_tokens: int | None

    def __init__(self, settings: Any) -> None: ...

    def submit(self, request: Any) -> None:
        """Take a request, of the kind that the engine is for. Raises SampleError if nothing can be made of
        this one; any other error ends the engine."""

    def step(self) -> Sequence[Done | Alive]:
        """Compute for a while and return what got finished; called only while requests are in flight."""

    def close(self) -> None:
        """Finish pending writes and free the devices."""


def load_engine(path: str) -> Callable[[ModelSettings], Engine]:
    """The engine class at `module:Class`. Raises ConfigError."""
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"extraction.engine: cannot import {name!r} from {module!r}") from error


def states_metadata(provenance: dict[str, str], key: str) -> dict[str, str]:
    """The `__metadata__` of a states file. One entry only: safetensors writes several in random order, and
    the same states must be the same bytes."""
    return {"provenance": json.dumps({**provenance, "key": key}, sort_keys=True)}


def error_path(states_path: str | os.PathLike[str]) -> Path:
    return Path(f"{states_path}.error")


def publish_states(states_path: str, write: Callable[[str], None]) -> None:
    """Let `write` make a part file and rename it to `states_path`; on an error leave `<states_path>.error`
    instead.

    This is the completion signal the committer waits for, so it never raises: one of the two files appears,
    unless the error cannot be written either (then the committer's time limit applies).
    """
    part = f"{states_path}.part"
    try:
        write(part)
        follow_umask(part)
        os.replace(part, states_path)
    except Exception as error:  # noqa: BLE001  whatever it is, it belongs to this sample and must reach its record
        failure = describe_exception(error)
        with contextlib.suppress(OSError):
            Path(part).unlink(missing_ok=True)
        error_part = f"{states_path}.error.part"
        Path(error_part).write_text(json.dumps(failure.to_json()), encoding="utf-8")
        os.replace(error_part, error_path(states_path))
