"""Real states of a target, in a store, to damage and to validate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from eagle3_data.engines.base import states_metadata
from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.hashing import sample_key
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import Sample
from eagle3_data.store import Store
from eagle3_data.validation.head import Head, read_head
from eagle3_data.validation.judging import Judge
from eagle3_data.validation.measured import Measured
from eagle3_data.validation.measuring import Measuring
from eagle3_data.validation.shared_prefix import PrefixIndex
from mutations import Damage, Material

CONVERSATIONS = Path(__file__).parents[1] / "config/demo/conversations.jsonl"
SYSTEM = (
    "You are a careful assistant. Answer in plain words, give the reasons, and say so where you are not sure."
)


def demo_ids(target: Path, limit: int, shared: int) -> list[list[int]]:
    """Token ids of demo conversations; the first `shared` of them begin with the same words."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(target)
    found = []
    for line in CONVERSATIONS.read_text().splitlines()[:limit]:
        messages = [one for one in json.loads(line)["messages"] if isinstance(one.get("content"), str)]
        text = "\n".join(f"{one['role']}: {one['content']}" for one in messages)
        found.append(tokenizer.encode((SYSTEM if len(found) < shared else "") + text)[:600])
    return found


@dataclass
class Ground:
    """Samples of a target with their states, computed by transformers in bfloat16, committed to a store."""

    target: Path
    directory: Path
    layers: tuple[int, ...]
    samples: list[Sample]

    @cached_property
    def identity(self) -> ExtractionIdentity:
        return ExtractionIdentity("f", self.layers, "bfloat16", "none", "e", {})

    @cached_property
    def store(self) -> Store:
        store = Store(self.directory / "store", self.identity.extraction_id)
        store.directory.mkdir(parents=True, exist_ok=True)
        return store

    @cached_property
    def reference(self) -> ReferenceModel:
        return ReferenceModel(str(self.target), torch.bfloat16)

    @cached_property
    def head(self) -> Head:
        return read_head(self.target)

    @cached_property
    def every_layer(self) -> dict[str, tuple[torch.Tensor, int]]:
        """By key, states [T, layers + 1, H] after every layer, and the next token."""
        every = range(self.layers[-1] + 1)
        return {one.key: self.reference.states(one.token_ids, every) for one in self.samples}

    @cached_property
    def index(self) -> PrefixIndex:
        return PrefixIndex((one.key, np.array(one.token_ids, np.int32)) for one in self.samples)

    def commit_all(self) -> None:
        for one in self.samples:
            states, _ = self.every_layer[one.key]
            self.commit(one, states[:, list(self.layers)])

    def commit(self, sample: Sample, states: torch.Tensor) -> None:
        """As an engine would that wrote `states`, right or wrong."""
        self.store.states_path(sample.key).unlink(missing_ok=True)
        part = self.store.directory / "part"
        save_file(
            {
                "hidden_states": states.to(torch.bfloat16).contiguous(),
                "token_ids": torch.tensor(sample.token_ids),
            },
            part,
            metadata=states_metadata({"extraction_id": self.identity.extraction_id}, sample.key),
        )
        facts = {"tokens": len(sample.token_ids), "size_bytes": part.stat().st_size}
        facts |= {"greedy_token": self.every_layer[sample.key][1], "xxh3_128": file_checksum(part)}
        self.store.commit(sample.key, part, facts)

    def measure(self, samples: Sequence[Sample]) -> list[Measured]:
        hidden_size = next(iter(self.every_layer.values()))[0].shape[-1]
        return Measuring(self.store, self.identity, hidden_size, self.head, 2).measure(samples)

    @cached_property
    def measured(self) -> dict[str, Measured]:
        """Of the right states of all samples."""
        return {one.key: one for one in self.measure(self.samples)}

    def judge(self, own: Sequence[Measured], shared_prefixes: bool = True) -> Judge:
        """Of `own` samples among the right states of all others."""
        mine = {one.key for one in own}
        others = [one for key, one in self.measured.items() if key not in mine]
        return Judge(self.store, self.head, "bfloat16", own, others, self.index if shared_prefixes else None)

    @contextmanager
    def damaged(self, samples: Sequence[Sample], damage: Damage) -> Iterator[list[Measured]]:
        """What is measured of `samples` whose states are `damage`d before anything else is made of them."""
        assert self.measured
        try:
            for one in samples:
                self.commit(one, damage(self.material(one)))
            yield self.measure(samples)
        finally:
            for one in samples:
                self.commit(one, self.every_layer[one.key][0][:, list(self.layers)])

    def material(self, sample: Sample) -> Material:
        every_layer, _ = self.every_layer[sample.key]
        order = sorted(self.samples, key=lambda one: (len(one.token_ids), one.key))
        longer = order[(order.index(sample) + 1) % len(order)]
        return Material(
            every_layer.float(),
            self.layers,
            self._as_long(self.every_layer[longer.key][0], len(sample.token_ids)),
            self._as_long(self.untrained, len(sample.token_ids)),
            self.head.normalized,
        )

    @cached_property
    def untrained(self) -> torch.Tensor:
        """States [T, layers + 1, H] of a model of the same shape with other weights."""
        model: Any = ReferenceModel(str(self.target), torch.bfloat16)
        generator = torch.Generator().manual_seed(5)
        for parameter in model._model.parameters():
            if parameter.dim() > 1:
                scale = parameter.float().std().item()
                parameter.data = (torch.randn(parameter.shape, generator=generator) * scale).to(
                    parameter.dtype
                )
        ids = max((one.token_ids for one in self.samples), key=len)
        states: torch.Tensor = model.states(ids, range(self.layers[-1] + 1))[0]
        return states

    def _as_long(self, states: torch.Tensor, length: int) -> torch.Tensor:
        repeated = states.repeat(-(-length // len(states)), 1, 1)[:length]
        return repeated[:, list(self.layers)].float()


def ground(target: Path, directory: Path, layers: tuple[int, ...], ids: Sequence[Sequence[int]]) -> Ground:
    samples = [
        Sample(f"s:{number}", sample_key(one), tuple(one), (1,) * len(one)) for number, one in enumerate(ids)
    ]
    made = Ground(target, directory, layers, list({one.key: one for one in samples}.values()))
    made.commit_all()
    return made
