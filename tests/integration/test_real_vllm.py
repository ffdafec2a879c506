"""Claims about states, on real vLLM: the demo from conversations to a training set, compared with
transformers and read by the trainer."""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import replace

import pytest
import torch

from eagle3_data.engines.base import EngineSettings
from eagle3_data.engines.vllm.engine import llm_arguments
from eagle3_data.validation.judgement import TIMES_ROUNDING
from eagle3_data.validation.reference_verdict import Reference
from integration.parity import compare
from integration.workflow import Workflow

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.xdist_group("vllm")]

DEMO_LAYERS = [2, 4, 5, 8]


def test_the_demo_ends_in_a_training_set_and_a_second_run_has_nothing_to_do(demo_run: Workflow) -> None:
    assert demo_run.targets() == sorted(demo_run.batches())
    assert len(demo_run.batches()) >= 4
    assert demo_run.run("extract").nothing_done
    assert demo_run.run("all").nothing_done
    provenance = json.loads((demo_run.results / "training_set/provenance.json").read_text())
    assert (
        provenance["rows"]
        == len(demo_run.stored())
        == len(list((demo_run.results / "training_set/hidden_states").iterdir()))
    )
    assert provenance["states"] == {"hard link": provenance["rows"]}
    assert provenance["dropped"] == {"duplicate": 1, "empty": 1, "too-long": 1}
    reference = Reference.read(demo_run.results / "reference.json")
    assert reference.status == "passed"
    assert [slot.layer for slot in reference.engines[0].slots] == DEMO_LAYERS
    assert max(slot.median / slot.rounding for slot in reference.engines[0].slots) < TIMES_ROUNDING / 2
    assert min(slot.contrast for slot in reference.engines[0].slots) > 10
    assert [proof["samples"] for proof in provenance["proofs"] if proof["proof"] == "reference"] == [2]


def test_the_engines_own_output_has_its_own_file(demo_run: Workflow) -> None:
    assert "vLLM" in demo_run.log("extract_pass/001/0.engine.log") or "vllm" in demo_run.log(
        "extract_pass/001/0.engine.log"
    )
    log = demo_run.log("extract_pass/001/0.log")
    assert re.search(
        r"model loaded in [\d.]+ s, of which the import of the engine's packages took [1-9]", log
    )
    assert "EngineCore" not in log


def test_prefill_is_not_compiled_unless_it_is_asked_for(demo_run: Workflow) -> None:
    settings = EngineSettings("", demo_run.config["target"]["path"], (8,), "bfloat16", 1, 512, False, "")
    assert llm_arguments(settings)["enforce_eager"] is True
    asked = replace(settings, arguments={"enforce_eager": False, "max_num_seqs": 8})
    assert (llm_arguments(asked)["enforce_eager"], llm_arguments(asked)["max_num_seqs"]) == (False, 8)


def test_in_bfloat16_the_error_is_that_of_rounding(demo_run: Workflow) -> None:
    errors = [error for one in compare(demo_run, DEMO_LAYERS) for error in one.own()]
    print(f"bfloat16 relative errors: median {statistics.median(errors):.4f}, largest {max(errors):.4f}")
    assert statistics.median(errors) < 0.02
    assert max(errors) < 0.03


def test_what_is_replayed_alone_comes_out_the_same(demo_run: Workflow) -> None:
    replay = json.loads(demo_run.ledger("001").read_text())["replay"]
    print(f"relative errors of the replay: {replay['slots']}")
    assert (len(replay["samples"]), replay["failed"], replay["unfinished"]) == (8, {}, "")
    assert max(slot["max"] for slot in replay["slots"]) < 0.05
    assert not list(demo_run.directory.glob("results/store/*/incoming/*"))


def test_the_trainer_loads_the_set_and_takes_a_step(demo_run: Workflow) -> None:
    import numpy as np
    from speculators.losses.utils import resolve_loss_config
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.models.eagle3.data import shift_batch
    from speculators.train.data import ArrowDataset, CollateFn
    from transformers import AutoConfig

    directory = demo_run.results / "training_set"
    target = demo_run.config["target"]["path"]
    dataset = ArrowDataset(max_len=1024, datapath=directory, on_missing="raise", train_ratio=0.9)
    collate = CollateFn(max_len=1024, hidden_size=256, num_target_layers=3, preprocess=shift_batch)
    batch = collate([dataset[0], dataset[1]])
    config = AutoConfig.from_pretrained(target)
    config.num_hidden_layers = 1
    model = Eagle3DraftModel.from_training_args(
        config,
        t2d=torch.from_numpy(np.load(directory / "t2d-512.npy")),
        d2t=torch.from_numpy(np.load(directory / "d2t-512.npy")),
        draft_vocab_size=512,
        norm_before_residual=True,
        ttt_steps=2,
        target_layer_ids=DEMO_LAYERS[:-1],
        verifier_name_or_path=target,
        draft_attn_impl="eager",
    ).to(torch.bfloat16)
    _, loss, _ = model(**batch, ttt_steps=2, loss_config=resolve_loss_config("kl_div", "eager"))
    loss.backward()
    assert torch.isfinite(loss)
    assert loss > 0
    assert (
        model.fc.weight.grad is not None
        and torch.isfinite(model.fc.weight.grad).all()
        and model.fc.weight.grad.abs().sum() > 0
    )
