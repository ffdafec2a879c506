"""Kinds of damage that files meet on disks, networks and by hand: each takes the path of a whole file."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Damage = Callable[[Path], object]


def in_place(make: Damage) -> Damage:
    """Puts something else in a file's place."""

    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


def keyed(**values: Any) -> Damage:
    """Sets keys of a record; None takes one out."""

    def change(path: Path) -> None:
        record = {**json.loads(path.read_text()), **values}
        path.write_text(json.dumps({name: value for name, value in record.items() if value is not None}))

    return change


def text(content: str) -> Damage:
    return lambda path: path.write_text(content)


def flip(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    """The last bytes are lost."""
    path.write_bytes(path.read_bytes()[:-7])


def time_kept(damage: Damage) -> Damage:
    """As `cp -p`, `rsync -a` and a disk that fails leave it: nothing shows but the content."""

    def change(path: Path) -> None:
        times = path.stat()
        damage(path)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns), follow_symlinks=False)

    return change


@contextlib.contextmanager
def forbidden(path: Path) -> Iterator[None]:
    """No damage: a file of somebody else's. Root may read all, so another user reads it meanwhile."""
    is_root = os.geteuid() == 0
    mode = path.stat().st_mode
    path.chmod(0)
    if is_root:
        os.seteuid(54_322)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        path.chmod(mode)


GONE: Damage = Path.unlink
DIRECTORY, PIPE = in_place(Path.mkdir), in_place(os.mkfifo)
DEAD_LINK = in_place(lambda path: path.symlink_to("nowhere"))
RECORD: dict[str, Damage] = {
    "gone": GONE, "empty": text(""), "no JSON": text("{"), "no record": text("{}"), "a list": text("[]"),
    "version only": text('{"format_version": 1}'), "another version": keyed(format_version=2),
    "a directory": DIRECTORY, "a pipe": PIPE, "a dead link": DEAD_LINK, "nested": text("[" * 100_000),
    "no UTF-8": lambda path: path.write_bytes(b"\xff\xfe"), "cut": cut,
}  # fmt: skip
"""Of any record."""
SIDECAR: dict[str, Damage] = {
    **RECORD,
    "no key": keyed(key=None), "no greedy token": keyed(greedy_token=None),
    "no checksum": keyed(xxh3_128=None),
    "no size": keyed(size_bytes=None), "no tokens": keyed(tokens=None), "no id": keyed(extraction_id=None),
    "size a text": keyed(size_bytes="12"), "greedy a text": keyed(greedy_token="7"),
    "greedy a float": keyed(greedy_token=7.5), "greedy negative": keyed(greedy_token=-1),
    "greedy beyond": keyed(greedy_token=10**6), "greedy far beyond": keyed(greedy_token=10**30),
    "checksum a number": keyed(xxh3_128=1), "another key": keyed(key="0" * 32),
    "another extraction": keyed(extraction_id="e"),
}  # fmt: skip
STATES: dict[str, Damage] = {
    "gone": GONE, "empty": text(""), "text": text("states"), "a directory": DIRECTORY, "a pipe": PIPE,
    "a dead link": DEAD_LINK, "cut": cut, "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "flipped": time_kept(flip), "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
}  # fmt: skip
LEDGER: dict[str, Damage] = {
    **RECORD,
    "no pass": keyed(**{"pass": None}), "pass a number": keyed(**{"pass": 1}),
    "no batches": keyed(batches=None),
    "batches a list": keyed(batches=[]), "a batch empty": keyed(batches={"00000": {}}),
    "no id": keyed(extraction_id=None), "failure a text": keyed(failure="died"),
    "deaths a list": keyed(deaths=["k"]),
}  # fmt: skip
BATCH_RECORD: dict[str, Damage] = {
    **RECORD,
    "no pass": keyed(**{"pass": None}), "no samples": keyed(samples=None),
    "samples texts": keyed(samples=["s"]),
    "no fingerprint": keyed(fingerprint=None), "another fingerprint": keyed(fingerprint="f"),
    "stripe a list": keyed(stripe=[]),
}  # fmt: skip
GATE: dict[str, Damage] = {
    **RECORD,
    "no fingerprint": keyed(fingerprint=None), "no samples": keyed(samples=None),
    "samples a text": keyed(samples="5"),
    "left out a text": keyed(left_out="none"), "left out odd": keyed(left_out=[1]),
}  # fmt: skip
VERDICT: dict[str, Damage] = {
    **RECORD,
    "no fingerprint": keyed(fingerprint=None), "no samples": keyed(samples=None),
    "rejected a list": keyed(rejected=[]), "another fingerprint": keyed(fingerprint="f"),
    "another id": keyed(extraction_id="e"), "fewer samples": keyed(samples=1),
}  # fmt: skip
INDEX: dict[str, Damage] = {
    **RECORD,
    "no batches": keyed(batches={}), "batches a list": keyed(batches=[]),
    "a batch empty": keyed(batches={"00000": {}}),
    "no samples": keyed(samples=None),
}  # fmt: skip
TABLE: dict[str, Damage] = {
    "gone": GONE, "empty": text(""), "cut": cut, "a directory": DIRECTORY, "a pipe": PIPE,
    "a dead link": DEAD_LINK, "flipped": flip,
}  # fmt: skip
"""Of a Parquet file."""
