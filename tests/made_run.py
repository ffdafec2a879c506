"""A validated run made without engine or Snakemake, for tests and benchmarks of what comes after: real states
of a tiny random model, or of many rows random ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors.numpy import save as save_numpy

from eagle3_data.assembly.build import Settings
from eagle3_data.config import Data, Extraction, Target, Tokenization, TrainingSet
from eagle3_data.engines.storage import stored_tensors
from eagle3_data.hashing import hash_json, sample_key
from eagle3_data.identity import identify_extraction
from eagle3_data.passes.ledger import FailedSample, Gate
from eagle3_data.records import write_json
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.checksum import file_checksum
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.records.seal import seal_files
from eagle3_data.store import Store
from eagle3_data.target import TargetDescription
from eagle3_data.tokenization.batches import SCHEMA
from eagle3_data.tokenization.ledger import SCHEMA as LEDGER_SCHEMA
from eagle3_data.validation.reference_verdict import Reference
from eagle3_data.validation.verdict import AppliedProof, BatchVerdict
from tiny_models import LAYERS, VOCABULARY, tiny_model

SLOTS = (1, 2, 3, LAYERS)
HIDDEN_SIZE = 64
OWN_SECTIONS = ("data", "extraction", "tokenization", "training_set")


@dataclass
class MadeRun:
    """A run in `directory` of `rows` conversations, the last two of which are for validation. With
    `random_states` no model computes them, so that thousands are made in seconds."""

    directory: Path
    rows: int = 10
    tokens: int = 12
    random_states: bool = False
    layers: tuple[int, ...] = SLOTS
    dtype: str = "float32"
    rows_a_batch: int = 4
    sections: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.target = self.directory / "model"
        self.run = RunPaths(self.directory / "results/made")
        if not self.target.exists():
            self.model = tiny_model("LlamaForCausalLM")
            self.model.save_pretrained(self.target)
            self._make()

    @property
    def output(self) -> Path:
        return self.run.training_set

    def settings(self, **training_set: Any) -> Settings:
        given = {name: self.sections.get(name, {}) for name in OWN_SECTIONS}
        source = {"path": str(self.directory / "data.jsonl"), "name": "made", "licence": "cc0-1.0"}
        return Settings(
            data=Data(**{"sources": [source], "train_ratio": 0.8, **given["data"]}),
            extraction=Extraction(
                **{
                    "layers": self.layers,
                    "dtype": self.dtype,
                    "store": str(self.directory / "store"),
                    **given["extraction"],
                }
            ),
            target=Target(path=str(self.target)),
            tokenization=Tokenization(max_length=64, **given["tokenization"]),
            training_set=TrainingSet(**{**given["training_set"], **training_set}),
        )

    def ids(self, row: int) -> list[int]:
        generator = np.random.default_rng(row)
        return generator.integers(3, VOCABULARY, self.tokens + row % 3).tolist()

    def mask(self, row: int) -> list[int]:
        length = len(self.ids(row))
        return [0] * (length // 2) + [1] * (length - length // 2)

    def states(self, row: int) -> torch.Tensor:
        """[T, L, H] float32 of the model, or random ones."""
        ids = self.ids(row)
        if self.random_states:
            return torch.randn(
                len(ids), len(self.layers), HIDDEN_SIZE, generator=torch.Generator().manual_seed(row)
            )
        found: list[torch.Tensor] = []
        hooks = [
            layer.register_forward_hook(lambda _, __, output: found.append(_tensor(output)))
            for layer in self.model.model.layers
        ]
        with torch.no_grad():
            self.model(torch.tensor([ids]))
        for hook in hooks:
            hook.remove()
        return torch.stack([found[layer - 1][0] for layer in self.layers], dim=1)

    def _make(self) -> None:
        (self.directory / "data.jsonl").write_text("".join(f"row {row}\n" for row in range(self.rows)))
        facts = {
            "path": str(self.target), "architecture": "LlamaForCausalLM",
            "text_architecture": "LlamaForCausalLM", "model_type": "llama", "num_hidden_layers": LAYERS,
            "hidden_size": HIDDEN_SIZE, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
            "quantization": "none", "weights_bytes": 1, "needs_remote_code": False, "fingerprint": "f" * 32,
        }  # fmt: skip
        TargetDescription(**facts).write(self.run.target)
        self.identity = identify_extraction(TargetDescription(**facts), self.settings().extraction)
        self.store = Store(self.directory / "store", self.identity.extraction_id)
        self.store.directory.mkdir(parents=True)
        self._write_tokens()
        write_json(self.run.report, {"findings": []})
        Reference.without(self.identity.extraction_id, "off", "no reference was made").write(
            self.run.reference
        )
        sizes = [self._store(row) for row in range(self.rows)]
        for batch, entry in self.index.batches.items():
            fingerprint = self.identity.batch_fingerprint(entry.fingerprint)
            Gate(batch, fingerprint, "ledger", entry.samples, []).write(self.run.gate(batch))
            start = entry.row_group * self.rows_a_batch
            BatchVerdict(
                batch, fingerprint, self.identity.extraction_id, entry.samples, entry.tokens,
                sum(sizes[start : start + entry.samples]),
                proofs=[AppliedProof("structure", entry.samples, "every slot and token", rows=entry.tokens)],
            ).write(self.run.verdict(batch))  # fmt: skip

    def _write_tokens(self) -> None:
        self.run.tokens.mkdir(parents=True)
        frequencies = np.zeros(VOCABULARY, np.int64)
        batches = {}
        with pq.ParquetWriter(self.run.samples, SCHEMA) as writer:
            for group, start in enumerate(range(0, self.rows, self.rows_a_batch)):
                rows = range(start, min(start + self.rows_a_batch, self.rows))
                ids, masks = [self.ids(row) for row in rows], [self.mask(row) for row in rows]
                for one, mask in zip(ids, masks, strict=True):
                    np.add.at(frequencies, np.array(one)[np.array(mask) == 1], 1)
                columns = {
                    "sample_id": [f"made:{row}" for row in rows],
                    "conversation_id": [f"made:{row}" for row in rows],
                    "split": ["train" if row < self.rows - 2 else "validation" for row in rows],
                    "key": [sample_key(one) for one in ids],
                    "input_ids": ids,
                    "loss_mask": masks,
                    "tokens": [len(one) for one in ids],
                    "trained_tokens": [sum(mask) for mask in masks],
                }
                writer.write_table(pa.table(columns, schema=SCHEMA))
                batches[f"{group:05d}"] = BatchEntry(
                    group, len(rows), sum(map(len, ids)), hash_json(columns["key"]), max(map(len, ids))
                )
        np.save(self.run.frequencies, frequencies)
        kept = {name: [None] * self.rows for name in LEDGER_SCHEMA.names} | {
            "source": ["made"] * self.rows,
            "reason": [""] * self.rows,
        }
        pq.write_table(pa.table(kept, schema=LEDGER_SCHEMA), self.run.row_ledger)
        sealed = ["samples.parquet", "token_frequencies.npy", "ledger.parquet"]
        self.index = BatchIndex(
            batches,
            self.rows,
            sum(entry.tokens for entry in batches.values()),
            files=seal_files(self.run.tokens, sealed),
            trained_tokens=int(frequencies.sum()),
            longest=max(entry.longest for entry in batches.values()),
            tokenizer={"special_ids": [0, 1, 2], "chat_template": "h"},
            sources={"made": seal_files(self.directory, ["data.jsonl"])},
        )
        self.index.write(self.run.batches)

    def _store(self, row: int) -> int:
        ids = self.ids(row)
        part = self.store.directory / "part"
        write_states(part, self.states(row), ids, self.identity.stored_dtype, self.identity.extraction_id)
        size = part.stat().st_size
        self.store.commit(
            sample_key(ids),
            part,
            {"size_bytes": size, "xxh3_128": file_checksum(part), "tokens": len(ids), "greedy_token": 1},
        )
        return size

    def leave_out(self, row: int) -> None:
        """As a failed sample that `max_failed_fraction` allowed."""
        batch = f"{row // self.rows_a_batch:05d}"
        gate, verdict = Gate.read(self.run.gate(batch)), BatchVerdict.read(self.run.verdict(batch))
        key = sample_key(self.ids(row))
        record = self.run.extraction / f"failures/{batch}/001-{key}.json"
        write_json(record, {"class": "SampleError"})
        missing = FailedSample(f"made:{row}", key, str(record))
        Gate(batch, gate.fingerprint, "ledger", gate.samples - 1, [missing]).write(self.run.gate(batch))
        size = self.store.states_path(key).stat().st_size
        facts = verdict.to_json() | {"samples": gate.samples - 1, "size_bytes": verdict.size_bytes - size}
        BatchVerdict.from_json(facts).write(self.run.verdict(batch))


def write_states(
    path: Path, states: torch.Tensor, ids: list[int], dtype: str, extraction_id: str = ""
) -> None:
    """A states file in the store's form."""
    metadata = {"provenance": json.dumps({"of": "a test", "extraction_id": extraction_id})}
    if dtype == "float32":
        tensors = {"hidden_states": states.numpy(), "token_ids": np.array(ids, np.int64)}
        path.write_bytes(save_numpy(tensors, metadata=metadata))
    else:
        from safetensors.torch import save_file

        stored = stored_tensors(states.to(torch.bfloat16), dtype)
        save_file({**stored, "token_ids": torch.tensor(ids)}, path, metadata=metadata)


def _tensor(output: Any) -> torch.Tensor:
    return output[0] if isinstance(output, tuple) else output
