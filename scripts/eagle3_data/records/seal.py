"""The seal of a stage with several files: one record names the others with size and checksum, so that a file
that was lost, cut or replaced is noticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from eagle3_data.errors import InputError
from eagle3_data.records.batch_index import SealedFile


def seal_files(directory: Path, names: Iterable[str]) -> dict[str, SealedFile]:
    """Size in bytes and xxh3-128 of each of the files `names` in `directory`."""
    from eagle3_data.records.checksum import file_checksum  # numpy: not for those that only look at sizes

    return {
        name: SealedFile((directory / name).stat().st_size, file_checksum(directory / name)) for name in names
    }


def check_sizes(directory: Path, sealed: Mapping[str, SealedFile]) -> None:
    """Raises InputError where a sealed file is missing or has another size. Cheap: no file is opened."""
    for name, facts in sealed.items():
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != facts.size_bytes:
            found = "missing" if size is None else f"{size} bytes long instead of {facts.size_bytes}"
            raise InputError(f"{path} is {found}; delete it and run the same command again to make it again")


def check_unchanged(seal: Path, sealed: Mapping[str, SealedFile]) -> None:
    """Raises InputError where a file beside the record `seal` has another size than was sealed, or is newer
    than the record and has other bytes. Reads nothing else."""
    directory = seal.parent
    check_sizes(directory, sealed)
    sealed_at = seal.stat().st_mtime_ns
    newer = {name: one for name, one in sealed.items() if (directory / name).stat().st_mtime_ns > sealed_at}
    if newer:
        check_contents(directory, newer)


def check_contents(directory: Path, sealed: Mapping[str, SealedFile]) -> None:
    """Raises InputError where a sealed file is not, byte for byte, the one that was sealed."""
    from eagle3_data.records.checksum import file_checksum

    check_sizes(directory, sealed)
    for name, facts in sealed.items():
        if file_checksum(directory / name) != facts.xxh3_128:
            raise InputError(
                f"{directory / name} has changed since it was made; delete it and run the same command again"
            )
