"""Permissions of what is written: the umask decides, as for any program. Standard library only.

`private: true` of the configuration is a umask of 077, set where Snakemake reads the workflow and inherited
by all that it starts, on other machines, too. Some libraries (safetensors, `tempfile`) make private files
whatever the umask; what is meant to stay is corrected here.
"""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE_UMASK = 0o077


def current_umask() -> int:
    """Read from the kernel, since `os.umask` cannot read it without setting it for all threads."""
    status = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace")
    return int(status.partition("Umask:")[2].split(maxsplit=1)[0], 8)


def follow_umask(path: str | os.PathLike[str]) -> None:
    """Give a file, or a directory and all that is in it, the permissions that the umask asks for. The
    setgid bit of directories is kept."""
    umask = current_umask()
    for directory, names, files in os.walk(path):
        for name in (directory, *(os.path.join(directory, name) for name in names)):
            os.chmod(name, 0o777 & ~umask | os.stat(name).st_mode & 0o7000)
        for name in files:
            os.chmod(os.path.join(directory, name), 0o666 & ~umask)
    if not os.path.isdir(path):
        os.chmod(path, 0o666 & ~umask)
