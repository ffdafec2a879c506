"""Which directory `target.path` means: a checkpoint's own, or one in the local cache of the Hugging Face hub.
Standard library only."""

from __future__ import annotations

import os
import re
from pathlib import Path

from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_json

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
DESCRIBED = ("*.json", "*.jinja", "*.model", "*.safetensors", "*.py")
"""Files of a checkpoint whose change makes it another target."""


def locate_target(path: str) -> Path:
    """The checkpoint's directory: `path` itself, the snapshot in a cache folder (`models--owner--name`), or
    that of a hub id (`owner/name`) which was downloaded before. Downloads nothing. Raises InputError."""
    if not path:
        raise InputError("target.path is empty; set it to the checkpoint's directory")
    directory = Path(path)
    if not directory.exists() and HUB_ID.fullmatch(path):
        cached = hub_cache() / f"models--{path.replace('/', '--')}"
        if not cached.is_dir():
            raise InputError(
                f"target.path: there is no directory {path}, and no model {path} in the local cache"
                f" {hub_cache()}; if it is a model of the Hugging Face hub, download it first:"
                f" hf download {path}"
            )
        directory = cached
    if (directory / "snapshots").is_dir() and not (directory / "config.json").exists():
        return _snapshot(directory)
    return directory


def hub_cache() -> Path:
    """Where the Hugging Face hub's downloads are kept, as its own library decides it."""
    if cache := os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface"
    return Path(home).expanduser() / "hub"


def _snapshot(cached: Path) -> Path:
    """The snapshot that the main branch was at when it was downloaded, else the newest one."""
    snapshots = sorted(
        (path for path in (cached / "snapshots").iterdir() if path.is_dir()),
        key=lambda path: path.stat().st_mtime_ns,
    )
    if not snapshots:
        name = cached.name.removeprefix("models--").replace("--", "/")
        raise InputError(
            f"target.path: {cached} holds no snapshot; the download did not finish: hf download {name}"
        )
    try:
        main = (cached / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return snapshots[-1]
    return next((path for path in snapshots if path.name == main), snapshots[-1])


def described_files(directory: Path) -> list[Path]:
    return sorted(path for pattern in DESCRIBED for path in directory.glob(pattern))


def state_of(directory: Path) -> str:
    """Changes when a file of the checkpoint is replaced, also by an older one, or a link leads elsewhere:
    where it really lies, and each file's size, time and inode. Cheap: no file is opened."""
    facts = []
    for path in described_files(directory):
        try:
            stat = path.stat()
        except OSError:
            continue
        facts.append([path.name, stat.st_size, stat.st_mtime_ns, stat.st_ino])
    return hash_json([os.path.realpath(directory), facts])
