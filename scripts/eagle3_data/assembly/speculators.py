"""The training set in speculators' layout (`speculators train --data-path`, version 0.9).

dataset_info.json, state.json, data-*.arrow   input_ids, loss_mask, seq_len; one row a sample, in training
                                              order
hidden_states/hs_<row>.safetensors            linked from the store
token_freq.pt                                 dict of token id to count over trained tokens
d2t-<N>.npy, t2d-<N>.npy                      with a draft vocabulary of N tokens
train.yaml                                    for `speculators train --config`
README.md, provenance.json                    the card; where every number comes from
seal.json, states.parquet                     what `eagle3_data.assembly.verify` compares the set with
"""

from __future__ import annotations

import shutil
import tempfile
from argparse import Namespace
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from eagle3_data.assembly.layout import STATES, states_name
from eagle3_data.errors import InputError
from eagle3_data.findings import Finding, Findings
from eagle3_data.log import say
from eagle3_data.passes.paths import PassPaths
from eagle3_data.progress import Progress
from eagle3_data.records import JsonObject
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.samples import Sample, SampleFile
from eagle3_data.store import Store
from eagle3_data.store.states import FP8
from eagle3_data.system.links import link
from eagle3_data.text import counted

FINGERPRINT = "training set"
"""What `datasets` is to call the rows; by itself, it would hash paths."""


def link_states(source: Path, destination: Path) -> str:
    """Make `destination` the same bytes as `source`, as cheaply as the file system can: "hard link",
    "reflink" or "copy"."""
    way = link(source, destination)
    if way is None:
        shutil.copyfile(source, destination)
    return way or "copy"


@dataclass
class Counts:
    """Of the samples in the set: tokens, trained tokens, and `frequencies` int64 [V] of each token id among
    the trained ones."""

    tokens: int
    trained_tokens: int
    frequencies: np.ndarray

    def take_out(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            trained = np.asarray(sample.token_ids)[np.asarray(sample.loss_mask, dtype=bool)]
            self.tokens -= len(sample.token_ids)
            self.trained_tokens -= len(trained)
            self.frequencies -= np.bincount(trained, minlength=len(self.frequencies))


def accepted_findings(results: Path) -> list[Finding]:
    """What the user accepted knowingly (`compatibility.allow`) of the compatibility check and of the passes'
    canaries, each once."""
    found = [*Findings.read(RunPaths(results).report).findings]
    for ledger in PassPaths(RunPaths(results).extraction).read_ledgers():
        found += ledger.canary
    return list(dict.fromkeys(finding for finding in found if finding.accepted))


def write_rows(samples: Path, directory: Path, without: Collection[str]) -> int:
    """Write the Arrow part of the set from `samples` (tokens/samples.parquet) but for the keys of `without`;
    returns the number of rows."""
    from datasets import Dataset, DatasetInfo, Features, List, Value

    features = Features(
        {"input_ids": List(Value("int64")), "loss_mask": List(Value("int64")), "seq_len": Value("int64")}
    )
    with tempfile.TemporaryDirectory(dir=directory.parent) as cache:
        dataset = Dataset.from_generator(
            _rows,
            gen_kwargs={"samples": str(samples), "without": sorted(without)},
            features=features,
            cache_dir=cache,
            keep_in_memory=False,
        )
        # neither where it was made nor when: equal rows give equal files
        named = Dataset(dataset.data, info=DatasetInfo(features=features), fingerprint=FINGERPRINT)
        named.set_format("torch")
        named.save_to_disk(directory)
        return len(dataset)


def _rows(samples: str, without: list[str]) -> Iterator[JsonObject]:
    for sample in SampleFile(samples).all_samples(frozenset(without)):
        yield {"input_ids": sample.token_ids, "loss_mask": sample.loss_mask, "seq_len": len(sample.token_ids)}


def link_rows(
    samples: Path, store: Store, directory: Path, rows: int, without: Collection[str]
) -> dict[str, int]:
    """Link every row's states as hidden_states/hs_<row>.safetensors; returns how many were linked in which
    way. Raises InputError where states are missing, or are of another extraction."""
    ways: dict[str, int] = {}
    (directory / STATES).mkdir()
    with Progress("links", "samples", rows) as progress:
        for row, name in enumerate(SampleFile(samples).all_names(without)):
            if not store.holds(name.key):
                raise InputError(
                    f"sample {name.sample_id} ({name.key}) is no longer in the store {store.directory}; run"
                    " the same command to extract it again"
                )
            if (found := store.read_sidecar(name.key).extraction_id) != store.extraction_id:
                raise InputError(
                    f"{store.sidecar_path(name.key)} says that its states are of extraction {found}, and this"
                    f" set is of {store.extraction_id}: a set of several targets or layers trains nothing;"
                    " call scripts/store.py verify --quarantine, then run the same command again"
                )
            way = link_states(store.states_path(name.key), directory / STATES / states_name(row))
            ways[way] = ways.get(way, 0) + 1
            progress.add()
    return ways


def write_token_frequencies(frequencies: np.ndarray, directory: Path) -> None:
    """`frequencies` int64 [V] over trained tokens."""
    import torch

    torch.save(
        {int(token): int(frequencies[token]) for token in np.nonzero(frequencies)[0]},
        directory / "token_freq.pt",
    )


def hidden_states_backend(stored_dtype: str) -> str:
    """By what speculators reads states that are stored so."""
    return "fp8" if stored_dtype == FP8 else "file"


def check_with_speculators(directory: Path, rows: int, max_length: int, stored_dtype: str) -> None:
    """Open the set as the trainer does and read its first, middle and last row. Raises InputError where that
    fails."""
    import torch
    from hs_connectors import HiddenStatesBackend
    from speculators.train.data import ArrowDataset

    backend = HiddenStatesBackend.registry[hidden_states_backend(stored_dtype)]
    transfer = backend.from_train_args(Namespace(hidden_states_path=None), str(directory))
    dataset = ArrowDataset(max_len=max_length, datapath=directory, transfer=transfer, on_missing="raise")
    if len(dataset) != rows:
        raise InputError(f"speculators sees {len(dataset)} rows in {directory}, {rows} were written")
    for row in sorted({0, rows // 2, rows - 1}):
        item = dataset[row]
        if not isinstance(item, dict):
            raise InputError(f"speculators cannot use row {row} of {directory}: {item!r}")
        if not torch.isfinite(item["hidden_states"].float()).all() or not item["loss_mask"].any():
            raise InputError(f"row {row} of {directory} has states that are not finite, or no trained token")
    say(f"checked with speculators' own loader: {counted(rows, 'row')}")
