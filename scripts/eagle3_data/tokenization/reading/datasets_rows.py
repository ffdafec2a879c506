"""Folders of files, saved datasets and datasets of the hub, by the `datasets` library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eagle3_data.config import Source
from eagle3_data.errors import InputError
from eagle3_data.tokenization.reading.formats import HUB, format_of, is_known
from eagle3_data.tokenization.reading.rows import Row
from eagle3_data.tokenization.reading.table_rows import ROWS_AT_ONCE, columns, rows_of

SAVED = ("state.json", "dataset_dict.json")
"""A folder with one of these was written by `save_to_disk`."""

CARDS = ("README.md", ".huggingface.yaml")


def split_files(number: int, source: Source) -> list[Path]:
    """The files of the source's split in a folder, if they are of formats that are read here: row by row, so
    that rows and files may have different fields. None if it takes the `datasets` library to read them.

    The library decides which file belongs to which split, by the folder's card or else by the file names.
    """
    from datasets.data_files import DataFilesDict, get_data_patterns

    folder = Path(source.path)
    if any((folder / name).exists() for name in SAVED):
        return []
    try:
        if any(
            "configs:" in (folder / name).read_text(errors="replace")
            for name in CARDS
            if (folder / name).is_file()
        ):
            found = _builder_files(source)
        else:
            base = str(folder.resolve())
            found = DataFilesDict.from_patterns(get_data_patterns(base), base_path=base)
    except Exception as error:
        raise _not_loaded(number, source, error) from error
    splits = {
        str(split): [Path(file) for file in files if is_known(format_of(Path(file))[0])]
        for split, files in found.items()
    }
    if not any(splits.values()):
        return []
    if not splits.get(source.split):
        raise _no_split(number, source, [split for split, files in splits.items() if files])
    return splits[source.split]


def read_dataset(number: int, source: Source) -> Iterator[Row]:
    """The rows of the split of a saved or a hub dataset, memory-mapped. Images and the like stay encoded."""
    found = _load_dataset(number, source)
    found = found.select_columns(columns(found.features.arrow_schema)).with_format("arrow")
    batches = (batch for table in found.iter(ROWS_AT_ONCE) for batch in table.to_batches())
    return rows_of(number, batches, source.tools_field)


def _builder_files(source: Source) -> Any:
    import datasets

    return datasets.load_dataset_builder(source.path, source.config_name or None).config.data_files


def _load_dataset(number: int, source: Source) -> Any:
    import datasets

    datasets.disable_progress_bars()
    name = source.path.removeprefix(HUB)
    try:
        found = (
            datasets.load_from_disk(name)
            if any((Path(name) / file).exists() for file in SAVED)
            else datasets.load_dataset(name, source.config_name or None, revision=source.revision or None)
        )
    except Exception as error:
        raise _not_loaded(number, source, error) from error
    if isinstance(found, datasets.DatasetDict):
        if source.split not in found:
            raise _no_split(number, source, list(found))
        found = found[source.split]
    return found


def _not_loaded(number: int, source: Source, error: Exception) -> InputError:
    import datasets

    name = source.path.removeprefix(HUB)
    if isinstance(error, datasets.exceptions.DatasetGenerationError):
        hint = (
            "its rows do not fit one table; have its files in a folder (`hf download --repo-type dataset"
            f" {name} --local-dir FOLDER`) and name that as the path: there they are read row by row"
        )
    elif Path(name).is_dir():
        hint = "check that it holds files of conversations, and `config_name`"
    else:
        hint = (
            "check the name, `config_name` and `revision`, the network, and for a gated dataset the token in"
            " HF_TOKEN"
        )
    return InputError(f"data.sources[{number}]: {source.path} cannot be loaded as a dataset; {hint}")


def _no_split(number: int, source: Source, splits: list[str]) -> InputError:
    return InputError(
        f"data.sources[{number}]: {source.path} has no split {source.split!r}; it has {', '.join(splits)};"
        " set the source's `split`"
    )
