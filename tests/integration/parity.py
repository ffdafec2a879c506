"""Compares what is in a store with a plain forward pass of transformers in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from eagle3_data.engines.transformers import ReferenceModel
from eagle3_data.samples import Sample, SampleFile
from eagle3_data.store.states import States, open_states
from integration.workflow import Workflow


@dataclass(frozen=True)
class Compared:
    """One sample. `errors[i][j]`: relative error of stored slot i against the reference state after layer
    `layers[j]`."""

    sample: Sample
    layers: list[int]
    slots: list[int]
    errors: torch.Tensor

    def own(self) -> list[float]:
        """Error of each slot against the layer it claims to be."""
        return [float(self.errors[i, self.layers.index(k)]) for i, k in enumerate(self.slots)]

    def neighbours(self) -> list[float]:
        """Error of each slot against the layers just before and after the one it claims to be."""
        return [
            float(self.errors[i, self.layers.index(near)])
            for i, k in enumerate(self.slots)
            for near in (k - 1, k + 1)
            if near in self.layers
        ]


def stored_samples(workflow: Workflow) -> list[tuple[Sample, States]]:
    paths = {path.stem: path for path in workflow.directory.glob("results/store/*/??/*.safetensors")}
    return [
        (sample, open_states(paths[sample.key]))
        for sample in SampleFile(workflow.results / "tokens/samples.parquet").all_samples()
    ]


def compare(workflow: Workflow, slots: list[int]) -> list[Compared]:
    """Every stored sample against every layer of the target."""
    reference = ReferenceModel(workflow.config["target"]["path"], torch.float32)
    layers = list(range(slots[-1] + 1))
    compared = []
    for sample, states in stored_samples(workflow):
        theirs, _ = reference.states(sample.token_ids, layers)
        ours = torch.from_numpy(states.values().copy())
        norms = theirs.norm(dim=(0, 2))
        errors = torch.stack(
            [(ours[:, i, None] - theirs).norm(dim=(0, 2)) / norms for i in range(len(slots))]
        )
        compared.append(Compared(sample, layers, slots, errors))
    return compared
