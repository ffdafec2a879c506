"""An engine for plumbing and fault injection: instant, deterministic, no model. Never used to claim anything
about states: they are drawn by chance, equal only where samples begin alike, and its next token is what the
target's norm and head make of the last one, so that nothing a run validates speaks against them.

Faults are read anew for every request from the JSON file named by FAKE_ENGINE_FAULTS:
{"start": "message"}            the engine does not start
{"hold_start": true}            ... or loads for as long as this is said
{"refuse": {key: "message"}}    submit raises SampleError
{"write": {key: errno}}         the write of the states fails with that errno
{"wrong": {key: "zeros"}}       all-zero states; "ids": another sample's token ids
{"kill": [key]}                 the process dies by SIGKILL when it meets the key
{"hang": [key]}                 it sleeps forever
{"hang_submit": true}           ... already when it is given a sample
{"hold": [key]}                 it waits before the key for as long as this is said (looks every 50 ms)
{"sleep_s": 0.1}                seconds spent on each sample

A sample of a replay goes by "<key> again" in these: `wrong` for the key alone is what the company of others
did. States of the kind "other" are another sample's.
"""

from __future__ import annotations

import json
import os
import signal
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from eagle3_data.engines.base import (
    EngineSettings,
    Extracted,
    Rejected,
    Request,
    publish_states,
    states_metadata,
)
from eagle3_data.errors import EngineError, SampleError

HOLD_LOOK_S = 0.05


def faults() -> dict[str, Any]:
    path = os.environ.get("FAKE_ENGINE_FAULTS")
    return json.loads(Path(path).read_text()) if path and Path(path).exists() else {}


def named(request: Request) -> str:
    return f"{request.key} again" if request.fresh else request.key


class FakeEngine:
    def __init__(self, settings: EngineSettings) -> None:
        self.versions = {"fake": "1"}
        self.step_tokens = None
        if message := faults().get("start"):
            raise EngineError(message)
        while faults().get("hold_start"):
            time.sleep(HOLD_LOOK_S)
        self._settings = settings
        self._hidden_size = json.loads((Path(settings.model_path) / "config.json").read_text())["hidden_size"]
        self._head = norm_and_head(Path(settings.model_path) / "model.safetensors")
        self._waiting: list[Request] = []

    def submit(self, request: Request) -> None:
        if faults().get("hang_submit"):
            time.sleep(1e6)
        if message := faults().get("refuse", {}).get(request.key):
            try:
                raise ValueError("the innermost cause")
            except ValueError as error:
                raise SampleError(message) from error
        self._waiting.append(request)

    def step(self) -> list[Extracted | Rejected]:
        request = self._waiting.pop(0)
        name = named(request)
        print(f"computing {name}", flush=True)
        while name in (now := faults()).get("hold", ()):
            time.sleep(HOLD_LOOK_S)
        time.sleep(now.get("sleep_s", 0))
        if name in now.get("kill", ()):
            os.kill(os.getpid(), signal.SIGKILL)
        if name in now.get("hang", ()):
            time.sleep(1e6)
        bits = self._draw(request, now.get("wrong", {}).get(named(request)))
        publish_states(request.states_path, lambda part: self._write(part, request, bits, now))
        return [Extracted(request.key, request.states_path, self._next_token(bits[-1, -1]))]

    def _draw(self, request: Request, wrong: str | None) -> np.ndarray:
        """bfloat16's bits, [T, L, H]."""
        ids = np.array(request.token_ids, dtype=np.int64)
        shape = (len(self._settings.layers), self._hidden_size)
        bits, seed = np.zeros((len(ids), *shape), np.uint16), int(wrong == "other")
        for row, token in enumerate(ids if wrong != "zeros" else ()):
            seed = zlib.crc32(token.tobytes(), seed)
            bits[row] = np.random.default_rng(seed).integers(0x3F00, 0x3FFF, shape, dtype=np.uint16)
        return bits

    def _next_token(self, state: np.ndarray) -> int:
        if self._head is None:
            return 0
        norm, head = self._head
        values = as_float32(state)
        return int(np.argmax(head @ (values / np.sqrt(np.mean(values**2) + 1e-5) * norm)))

    def _write(self, part: str, request: Request, bits: np.ndarray, now: dict[str, Any]) -> None:
        if number := now.get("write", {}).get(named(request)):
            raise OSError(number, os.strerror(number), part)
        wrong = now.get("wrong", {}).get(named(request))
        ids = np.array(request.token_ids, dtype=np.int64) + (wrong == "ids")
        write_safetensors(
            Path(part),
            {"hidden_states": ("BF16", bits), "token_ids": ("I64", ids)},
            states_metadata(self._settings.provenance, request.key),
        )

    def close(self) -> None: ...


def as_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def norm_and_head(checkpoint: Path) -> tuple[np.ndarray, np.ndarray] | None:
    """Of tiny-llama, in one bfloat16 file."""
    if not checkpoint.exists():
        return None
    content = checkpoint.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])

    def read(name: str) -> np.ndarray:
        begin, end = header[name]["data_offsets"]
        bits = np.frombuffer(content[start + begin : start + end], np.uint16)
        return as_float32(bits).reshape(header[name]["shape"])

    names = ("model.norm.weight", "lm_head.weight")
    if any(header.get(name, {}).get("dtype") != "BF16" for name in names):
        return None
    return read(names[0]), read(names[1])


def write_safetensors(
    path: Path, tensors: dict[str, tuple[str, np.ndarray]], metadata: dict[str, str]
) -> None:
    header: dict[str, Any] = {"__metadata__": metadata}
    offset = 0
    for name, (dtype, array) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(
        len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for _, array in tensors.values())
    )
