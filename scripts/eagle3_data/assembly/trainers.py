"""What each trainer is told: the command that trains, and the files it reads its settings from."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from shlex import join

import yaml

from eagle3_data.assembly.layout import TRAIN
from eagle3_data.assembly.provenance import FormatUse
from eagle3_data.assembly.split import Split
from eagle3_data.records import JsonObject

FUSED_LOSS_FAILS = "2.11."
"""torch 2.11: the fused loss of speculators 0.9 ends with an inductor error inside its autograd function."""
SPECULATORS, SPECFORGE, MODELOPT = "speculators", "specforge", "modelopt"
MODELOPT_RECIPE = "../../modelopt_recipes/general/speculative_decoding/eagle3.yaml"


@dataclass(frozen=True)
class Training:
    """What is trained: the set in `directory`, as the user named it, and the draft that is to be made in
    `draft`. `vocabulary` is None where the draft has the target's; `layers` end with the last one."""

    directory: Path
    draft: Path
    target: str
    trust_remote_code: bool
    layers: tuple[int, ...]
    split: Split
    max_length: int
    vocabulary: int | None
    backend: str
    """By what speculators reads the states."""

    def formats(self, wanted: list[str]) -> dict[str, FormatUse]:
        """Each of the formats `wanted`, with its command."""
        auxiliary = list(self.layers[:-1])
        zero_based = [layer - 1 for layer in auxiliary]
        made = {
            SPECULATORS: FormatUse(".", auxiliary, self._speculators_command()),
            SPECFORGE: FormatUse(SPECFORGE, zero_based, self._specforge_command()),
            MODELOPT: FormatUse(MODELOPT, zero_based, self._modelopt_command(zero_based)),
        }
        return {name: made[name] for name in wanted}

    def _speculators_command(self) -> str:
        return join(["speculators", "train", "--config", str(self.directory / TRAIN)])

    def _specforge_command(self) -> str:
        return join(["specforge", "train", "--config", str(self.directory / SPECFORGE / TRAIN)])

    def _modelopt_command(self, auxiliary: list[int]) -> str:
        """From ModelOpt's examples/speculative_decoding, so paths are absolute."""
        folder = Path(os.path.abspath(self.directory)) / MODELOPT
        architecture = "eagle.eagle_architecture_config"
        settings = {
            "model.model_name_or_path": os.path.abspath(self.target),
            "model.trust_remote_code": str(self.trust_remote_code).lower(),
            "model.use_fake_base_for_offline": "true",
            "data.offline_data_path": folder / "train",
            "training.answer_only_loss": "true",
            "training.training_seq_len": self.max_length,
            "training.output_dir": f"{os.path.abspath(self.draft)}-{MODELOPT}",
            f"{architecture}.eagle_aux_hidden_state_layer_ids": str(auxiliary).replace(" ", ""),
        }
        if self.vocabulary:
            settings |= {
                "data.draft_vocab_cache": folder / "vocabulary/d2t.pt",
                f"{architecture}.draft_vocab_size": self.vocabulary,
            }
        words = [f"{name}={value}" for name, value in settings.items()]
        return join(["./launch_train.sh", "--config", MODELOPT_RECIPE, *words])

    # ---- the files

    def speculators_config(self) -> str:
        """train.yaml of speculators 0.9. Paths are as the user named them: from where the workflow runs."""
        train: JsonObject = {
            "speculator_type": "eagle3",
            "verifier": {
                "verifier_name_or_path": self.target,
                "trust_remote_code": self.trust_remote_code,
            },
            "draft": {"target_layer_ids": list(self.layers[:-1])},
            "data": {
                "data_path": str(self.directory),
                "total_seq_len": self.max_length,
                "train_data_ratio": self.split.train_data_ratio,
            },
            "generation": {"on_missing": "raise"},
            "trainer": {"save_path": str(self.draft)},
        }
        if self.backend != "file":
            train["data"]["hidden_states_backend"] = self.backend
        if self.vocabulary:
            train["draft"]["draft_vocab_size"] = self.vocabulary
        if needs_eager_loss():
            train["loss"] = {"loss_implementation": "eager"}
        return _yaml({"train": train}, SPECULATORS_COMMENT)

    def specforge_config(self, evaluates: bool) -> str:
        """train.yaml of SpecForge; `evaluates`: there are validation rows."""
        folder = self.directory / SPECFORGE
        config: JsonObject = {
            "model": {
                "target_model_path": self.target,
                "draft_model_config": str(folder / "draft.json"),
                "trust_remote_code": self.trust_remote_code,
                "vocab_mapping_path": str(folder / "vocab_mapping/vocab_mapping.pt")
                if self.vocabulary
                else "",
                "torch_dtype": "bfloat16",
            },
            "data": {
                "hidden_states_path": str(folder / "train"),
                "max_length": self.max_length,
            },
            "training": {
                "strategy": "eagle3",
                "num_epochs": 10,
                "batch_size": 1,
                "learning_rate": 0.0001,
                "ttt_length": 7,
                "attention_backend": "sdpa",
            },
            "run_id": self.draft.parent.name,
            "output_dir": f"{self.draft}-{SPECFORGE}",
            "deployment": {"mode": "local_colocated", "trainer": {"nnodes": 1, "nproc_per_node": 1}},
        }
        if evaluates:
            config["data"]["eval_hidden_states_path"] = str(folder / "validation")
        return _yaml(config, SPECFORGE_COMMENT)


SPECULATORS_COMMENT = """\
# For `speculators train --config`, speculators 0.9. An option on the command line takes precedence; if the
# set was moved, add --data-path and --verifier-name-or-path.
#   target_layer_ids    without the last layer, which is no input: targets are computed from it
#   train_data_ratio    cuts before the validation rows; elsewhere, a conversation may be on both sides
#   total_seq_len       the longest row; rows are packed, so more uses the GPU better if memory allows
#   on_missing: raise   states that are missing are an error, not a request to a server
#   save_path           where checkpoints go; more options: speculators train --help
"""
SPECFORGE_COMMENT = """\
# For `specforge train --config`. Epochs, learning rate and the like are those of SpecForge's own recipes.
# embedding_key (default model.embed_tokens.weight) must name the target's embedding as its checkpoint does.
"""


def needs_eager_loss() -> bool:
    """Whether the torch that is installed here cannot compute speculators' fused loss."""
    try:
        return metadata.version("torch").startswith(FUSED_LOSS_FAILS)
    except metadata.PackageNotFoundError:
        return False


def _yaml(values: JsonObject, comment: str) -> str:
    return comment + yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=1000)
