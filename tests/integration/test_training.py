"""The command that a run ends with trains, for real: `speculators train` on the CPU, with a stand-in for the
accelerator it asks for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from eagle3_data.assembly.build import build_training_set
from made_run import MadeRun
from tiny_tokenizer import TEMPLATES, save_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TRAIN = """
import sys, types
import torch
from speculators.train import trainer
from speculators.train.cli import main
from speculators.train.config import TrainConfig

cpu = torch.device("cpu")
torch.accelerator = types.SimpleNamespace(
    current_accelerator=lambda check_available=False: cpu, current_device_index=lambda: 0,
    is_available=lambda: False, set_device_index=lambda index: None, synchronize=lambda: None,
    memory_allocated=lambda: 0,
)
torch.get_device_module = lambda device=None: types.SimpleNamespace(empty_cache=lambda: None)
trainer.get_local_rank = lambda: cpu  # what models and batches are moved to
main(TrainConfig.resolve(sys.argv[1:]))
"""
STEPS = 40


def test_speculators_trains_on_train_yaml_and_the_loss_falls(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "made", rows=40, dtype="bfloat16")
    save_tokenizer(run.target, (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8"))
    build_training_set(run.settings(draft_vocab_size=200), run.run.results, run.output, 1)
    facts = json.loads((run.output / "provenance.json").read_text())
    command = facts["formats"]["speculators"]["command"].split()
    assert command[:3] == ["speculators", "train", "--config"]
    on_the_cpu = ["--draft-attn-impl", "eager", "--loss-implementation", "eager", "--num-workers", "0"]
    briefly = ["--max-steps", str(STEPS), "--epochs", "20", "--lr", "5e-3"]
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, *command[2:], *on_the_cpu, *briefly],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "2"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    draft = run.output.with_name("draft")
    losses = [
        json.loads(path.read_text())
        for path in sorted(draft.glob("[0-9]*/val_metrics.json"), key=lambda path: int(path.parent.name))
    ]
    name = next(name for name in sorted(losses[0]) if "loss" in name)
    print(f"validation {name}: {losses[0][name]:.3f} -> {losses[-1][name]:.3f}")
    assert losses[-1][name] < losses[0][name]
    last = max((int(path.parent.name) for path in draft.glob("[0-9]*/model.safetensors")), default=None)
    config = json.loads((draft / f"{last}/config.json").read_text())
    assert config["draft_vocab_size"] == 200
    with safe_open(draft / f"{last}/model.safetensors", framework="pt") as weights:
        assert "d2t" in weights.keys()  # noqa: SIM118  no mapping
