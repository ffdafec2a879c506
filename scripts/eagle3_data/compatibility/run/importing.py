"""Whether the modules of the target's architecture can be imported, tried in a process of their own.

vLLM imports a model's module only when it needs it, and where that fails says far from the cause that the
architecture "failed to be inspected". The import takes as long as vLLM's own, so it runs beside the rest of
the check, and what could be imported is remembered until an installed package changes.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import TypedDict

from eagle3_data.findings import Finding
from eagle3_data.hashing import hash_json
from eagle3_data.records import find_json, write_json

TIMEOUT_S = 180.0
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "VLLM_CONFIGURE_LOGGING": "1"}
TRIAL = """
import importlib, json, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        chain = []
        while error is not None and error not in chain:
            chain.append(error)
            error = error.__cause__ or error.__context__
        cause = next((e for e in reversed(chain) if isinstance(e, ImportError)), chain[-1])
        answer = {"module": name, "type": type(cause).__name__, "message": str(cause) or repr(cause)}
        answer |= {"is_import": isinstance(cause, ImportError), "missing": getattr(cause, "name", None)}
        print("\\n" + json.dumps(answer), flush=True)
        break
else:
    print("\\n{}", flush=True)
"""
LEFT_OUT = ("torchvision", "torchaudio", "torchcodec")
OF_THE_MACHINE = ("shared object", "libcuda", "CUDA", "driver", "GPU")
"""In the message of an import that fails for want of devices, not of packages."""


class ImportFailure(TypedDict):
    """What TRIAL prints of an import that failed; an empty object if none did."""

    module: str
    type: str
    message: str
    is_import: bool
    missing: str | None


class Importing:
    """The import of `modules`, begun when this is made. `finish` waits for it."""

    def __init__(self, modules: Sequence[str], cache: Path | None = None) -> None:
        self._modules = modules
        self._record = (cache or _cache()) / f"{_identity(modules)}.json"
        self._process: subprocess.Popen[str] | None = None
        if not modules or find_json(self._record) is not None:
            return
        self._process = subprocess.Popen(
            [sys.executable, "-c", TRIAL, *modules],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**os.environ, **QUIET},
        )
        self._ended = threading.Thread(target=self._read, daemon=True)
        self._output = ""
        self._ended.start()

    def _read(self) -> None:
        """In a thread of its own: a pipe that is not read stops its writer."""
        assert self._process is not None
        self._output = self._process.communicate()[0]

    def finish(self) -> list[Finding]:
        """What the import found. Ends it after TIMEOUT_S."""
        if self._process is None:
            return []
        self._ended.join(TIMEOUT_S)
        if self._ended.is_alive():
            self._process.kill()
            return [self._unknown(f"took more than {TIMEOUT_S:.0f} s")]
        last = self._output.rstrip().rpartition("\n")[2]
        try:
            answer: ImportFailure = json.loads(last)
        except ValueError:
            return [self._unknown(f"ended with exit code {self._process.returncode}: {last or 'no output'}")]
        if answer:
            return [self._failed(answer)]
        with contextlib.suppress(OSError):  # no place to remember it: it is tried again next time
            write_json(self._record, {"modules": list(self._modules)})
        return []

    def _failed(self, answer: ImportFailure) -> Finding:
        message = f"{answer['type']}: {answer['message']}"
        if not answer["is_import"] or any(word in answer["message"] for word in OF_THE_MACHINE):
            return self._unknown(f"failed: {message}")
        return Finding(
            "module-not-importable",
            "fail",
            f"{answer['module']}, which holds the target's architecture, cannot be imported: {message}",
            answer["module"],
            remedy=_remedy(str(answer["missing"] or "").partition(".")[0]),
        )

    def _unknown(self, how: str) -> Finding:
        title = f"could not find out whether {', '.join(self._modules)} can be imported: the import {how}"
        remedy = "if the job runs on another machine than the check, its canary will show"
        return Finding("module-not-importable", "unknown", title, remedy=remedy)


def _remedy(missing: str) -> str:
    if missing in LEFT_OUT:
        return (
            f"install the {missing} that belongs to the installed torch ({_version('torch')}), from the index"
            " that torch came from (https://download.pytorch.org/whl/cpu for a CPU build; PyPI's does not fit"
            " it), or extract with the environment for GPUs, which has it"
        )
    if missing:
        return f"install {missing}, or a vLLM that fits the installed packages"
    return "install the packages that this vLLM wants (envs/), or a vLLM that fits those installed"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eagle3-data" / "imports"


def _identity(modules: Sequence[str]) -> str:
    """Of what decides whether an import succeeds: the interpreter and every installed package."""
    packages = sorted(f"{found.name} {found.version}" for found in metadata.distributions())
    return hash_json([sys.executable, list(modules), packages, os.environ.get("PYTHONPATH", "")])
