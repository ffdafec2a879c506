"""Passes, gates and the store under real Snakemake: what a run plans, what a failure costs, what a rerun
does."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

from integration.workflow import Workflow, conversation, write_jsonl

pytestmark = pytest.mark.slow


def test_a_run_extracts_every_batch_with_one_load_and_a_second_has_nothing_to_do(fast: Workflow) -> None:
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert list(run.passes) == ["001/0"]
    assert fast.targets() == sorted(fast.batches()) == [f"{number:05d}" for number in range(5)]
    assert run.passes["001/0"]["model_loads"] == 1
    assert "5 of 5 batches extracted" in run.output
    assert fast.run("extract").nothing_done


def test_a_failed_sample_costs_its_batch_only_and_the_same_command_retries_exactly_it(fast: Workflow) -> None:
    poison = fast.keys("00002")[0]
    fast.faults = {"refuse": {poison: "this sample is poison"}}
    failed = fast.run("extract")
    assert failed.returncode != 0
    assert fast.targets() == ["00000", "00001", "00003", "00004"]
    assert len(fast.stored()) == 9
    log = fast.log("extract_batch/00002.log")
    for expected in (
        "this sample is poison",
        "caused by ValueError: the innermost cause",
        "Traceback (most recent call last)",
        "fake_engine.py",
    ):
        assert expected in log
    assert "4 of 5 batches extracted" in failed.output
    assert "1 sample: SampleError: this sample is poison" in failed.output
    assert "snakemake" in failed.output.rsplit("rerun only what is missing:", 1)[1]
    fast.faults = {}
    retried = fast.run("extract")
    assert retried.returncode == 0
    assert list(retried.passes) == ["002/0"]
    assert retried.passes["002/0"]["model_loads"] == 1
    assert retried.passes["002/0"]["samples_extracted"] == 1
    assert retried.gates == ["00002"]
    assert fast.run("extract").nothing_done


def append_a_row(workflow: Workflow) -> list[str]:
    write_jsonl(
        workflow.directory / "data.jsonl",
        [*(conversation(number) for number in range(100, 110)), conversation(500)],
    )
    return ["extract"]


def edit_a_row(workflow: Workflow) -> list[str]:
    write_jsonl(
        workflow.directory / "data.jsonl",
        [conversation(777), *(conversation(number) for number in range(101, 110))],
    )
    return ["extract"]


def change_jobs(workflow: Workflow) -> list[str]:
    workflow.config["extraction"]["jobs"] = 2
    return ["extract"]


def delete_ledgers(workflow: Workflow) -> list[str]:
    shutil.rmtree(workflow.results / "extraction/passes")
    return ["extract"]


def delete_a_sample(workflow: Workflow) -> list[str]:
    key = workflow.keys("00001")[0]
    next(workflow.directory.glob(f"results/store/*/{key[:2]}/{key}.safetensors")).unlink()
    return ["extract"]


def change_layers(workflow: Workflow) -> list[str]:
    config = json.loads((Path(workflow.config["target"]["path"]) / "config.json").read_text())
    workflow.config["extraction"]["layers"] = [1, 2, 3, config["num_hidden_layers"]]
    return ["extract"]


CHANGES: list[Any] = [
    # the change, the passes it must plan, the samples they must extract
    (append_a_row, ["002/0"], 1),
    pytest.param(edit_a_row, ["002/0"], 1, marks=pytest.mark.nightly),
    (change_layers, ["002/0"], 10),
    (change_jobs, [], 0),
    (lambda workflow: ["-R", "extract_pass", "--", "extract"], [], 0),
    pytest.param(lambda workflow: ["--forceall", "extract"], [], 0, marks=pytest.mark.nightly),
    (delete_ledgers, [], 0),
    (delete_a_sample, ["002/0"], 1),
    (lambda workflow: ["results/test/extraction/batches/00003.json"], [], 0),
]


@pytest.mark.parametrize(
    ("change", "passes", "extracted"),
    CHANGES,
    ids=["append", "edit", "layers", "jobs", "-R", "--forceall", "ledgers", "sample", "target"],
)
def test_after_a_finished_run_a_change_plans_exactly_its_passes(
    finished: Workflow, change: Callable[[Workflow], list[str]], passes: list[str], extracted: int
) -> None:
    run = finished.run(*change(finished))
    assert run.returncode == 0, run.output
    assert list(run.passes) == passes
    assert sum(ledger["samples_extracted"] for ledger in run.passes.values()) == extracted
    assert all(ledger["model_loads"] == int(extracted > 0) for ledger in run.passes.values())
    assert finished.targets() == sorted(finished.batches())
    again = finished.run("extract")
    assert again.nothing_done, again.output


def test_a_changed_chat_template_file_tokenizes_again(fast: Workflow) -> None:
    template = fast.directory / "template.jinja"
    shutil.copy(Path(fast.config["target"]["path"]) / "chat_template.jinja", template)
    fast.config["tokenization"]["chat_template"] = "template.jinja"
    assert fast.run("results/test/tokens/batches.json").returncode == 0
    before = fast.keys("00000")
    template.write_text("{{ 'A preamble. ' }}" + template.read_text())
    run = fast.run("results/test/tokens/batches.json")
    assert "tokenize_dataset" in run.jobs, run.output
    assert fast.keys("00000") != before


def test_a_changed_comment_in_our_code_reruns_nothing(finished: Workflow) -> None:
    project = finished.copy_project()
    assert finished.run("extract").nothing_done
    for script in (*project.glob("scripts/*.py"), *project.glob("scripts/eagle3_data/extraction/*.py")):
        script.write_text(script.read_text() + "# a comment\n")
    assert finished.run("extract").nothing_done


def test_a_single_batch_as_target_runs_one_pass_whose_work_the_others_use(fast: Workflow) -> None:
    one = fast.run("results/test/extraction/batches/00003.json")
    assert one.returncode == 0, one.output
    assert list(one.passes) == ["001/0"]
    assert one.gates == ["00003"]
    rest = fast.run("extract")
    assert rest.returncode == 0
    assert rest.passes == {}
    assert rest.gates == ["00000", "00001", "00002", "00004"]


def test_two_jobs_share_a_pass_and_each_loads_once_on_devices_of_its_own(
    fast: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast.config["extraction"]["jobs"] = 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert sorted(run.passes) == ["001/0", "001/1"]
    assert [sorted(ledger["batches"]) for _, ledger in sorted(run.passes.items())] == [
        ["00000", "00002", "00004"],
        ["00001", "00003"],
    ]
    assert all(ledger["model_loads"] == 1 for ledger in run.passes.values())
    assert [ledger["devices"] for _, ledger in sorted(run.passes.items())] == ["4", "5"]


def test_a_job_whose_engine_dies_disturbs_no_other_and_alone_is_done_again(fast: Workflow) -> None:
    fast.config["extraction"] |= {"jobs": 2, "engine_restarts": 0}
    fast.faults = {"kill": fast.keys("00001")}
    run = fast.run("extract")
    assert run.returncode != 0
    assert [bool(ledger["failure"]) for _, ledger in sorted(run.passes.items())] == [False, True]
    assert {"00000", "00002", "00004"} <= set(fast.targets())
    fast.faults = {}
    mended = fast.run("extract")
    assert mended.returncode == 0, mended.output
    assert list(mended.passes) == ["002/1"]


def test_an_engine_that_does_not_start_fails_every_batch_for_one_recorded_cause(fast: Workflow) -> None:
    fast.faults = {"start": "no such device"}
    run = fast.run("extract")
    assert run.returncode != 0
    ledger = run.passes["001/0"]
    assert ledger["failure"]["message"] == "no such device"
    assert "Traceback" in ledger["failure"]["traceback"]
    assert {outcome["state"] for outcome in ledger["batches"].values()} == {"not_reached"}
    assert "10 samples: EngineError: no such device" in run.output
    told = [batch for batch in fast.batches() if "Traceback" in fast.log(f"extract_batch/{batch}.log")]
    assert len(told) == 1, "the cause is shown once"
    assert all(
        f"see the log of batch {told[0]}" in fast.log(f"extract_batch/{batch}.log")
        for batch in fast.batches()
        if batch not in told
    )


def test_other_batch_sizes_or_another_run_on_the_same_store_load_no_model(finished: Workflow) -> None:
    before = finished.stored()
    finished.config["tokenization"]["batch_tokens"] = 200
    resized = finished.run("extract")
    assert resized.returncode == 0, resized.output
    assert resized.passes == {}
    assert "find_stored_batches" in resized.jobs
    assert "extract_pass" not in resized.jobs
    assert finished.run("extract").nothing_done
    finished.config["run"] = "another"
    other = finished.run("extract")
    assert other.returncode == 0, other.output
    assert other.passes == {}
    assert finished.stored() == before


def test_failed_samples_may_be_gone_without_knowingly_and_the_training_set_says_so(fast: Workflow) -> None:
    fast.config["extraction"]["max_failed_fraction"] = 0.5
    poison = fast.keys("00002")[0]
    fast.faults = {"refuse": {poison: "refused for the test"}}
    run = fast.run("all")
    assert run.returncode == 0, run.output
    provenance = json.loads((fast.results / "training_set/provenance.json").read_text())
    assert [sample["key"] for sample in provenance["left_out"]] == [poison]
    assert provenance["rows"] == 9
    rows = Dataset.load_from_disk(str(fast.results / "training_set"))
    trained = Counter(
        token
        for row in rows
        for token, mask in zip(row["input_ids"].tolist(), row["loss_mask"].tolist(), strict=True)
        if mask
    )
    assert torch.load(fast.results / "training_set/token_freq.pt", weights_only=True) == trained
    assert (provenance["tokens"], provenance["trained_tokens"]) == (sum(rows["seq_len"]), trained.total())
    assert fast.run("all").nothing_done
    fast.config["extraction"]["max_failed_fraction"] = 0.0
    fast.faults = {}
    strict = fast.run("extract")
    assert strict.returncode == 0, strict.output
    assert [ledger["samples_extracted"] for ledger in strict.passes.values()] == [1]


def test_an_accepted_finding_is_in_the_provenance_of_the_training_set(fast: Workflow) -> None:
    template = (Path(fast.config["target"]["path"]) / "chat_template.jinja").read_text()
    (fast.directory / "mute.jinja").write_text(
        "{% if messages[0].content.startswith('Wie ') %}{{ messages[0].role }}{% else %}"
        + template
        + "{% endif %}"
    )
    fast.config["tokenization"]["chat_template"] = "mute.jinja"
    fast.config["compatibility"]["allow"] = ["template-drops-text"]
    run = fast.run("all")
    assert run.returncode == 0, run.output
    provenance = fast.results / "training_set/provenance.json"
    (finding,) = json.loads(provenance.read_text())["accepted_findings"]
    assert finding["id"] == "template-drops-text" and finding["title"]
    assert fast.run("all").nothing_done
    fast.config["compatibility"]["allow"] = []
    changed = fast.run("all")
    assert sorted(changed.jobs) == ["all", "assemble_training_set", "check_compatibility"], changed.output
    assert json.loads(provenance.read_text())["accepted_findings"] == []
    assert fast.run("all").nothing_done


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ({"write": 28}, "No space left on device"),
        ({"wrong": "zeros"}, "all-zero"),
        ({"wrong": "ids"}, "wrong-token-ids"),
    ],
    ids=["disk-full", "zeros", "swapped"],
)
def test_states_that_are_not_the_samples_never_reach_the_store(
    fast: Workflow, fault: dict[str, object], expected: str
) -> None:
    key = fast.keys("00004")[0]
    fast.faults = {name: {key: value} for name, value in fault.items()}
    run = fast.run("extract")
    assert run.returncode != 0
    assert not list(fast.directory.glob(f"results/store/*/??/{key}*"))
    assert len(fast.stored()) == 9
    assert expected in fast.log("extract_batch/00004.log")
    assert not list(fast.directory.glob("results/store/*/incoming/*/*"))


def test_good_batches_go_on_downstream_past_a_failed_one(fast: Workflow) -> None:
    fast.faults = {"refuse": {fast.keys("00002")[0]: "refused for the test"}}
    failed = fast.run("all")
    assert failed.returncode != 0
    assert sorted(path.stem for path in fast.results.glob("validation/*.json")) == [
        "00000",
        "00001",
        "00003",
        "00004",
    ]
    assert not (fast.results / "training_set").exists()
    fast.faults = {}
    mended = fast.run("all")
    assert mended.returncode == 0, mended.output
    assert mended.gates == ["00002"]
    assert mended.jobs.count("validate_batch") == 1
    assert (fast.results / "training_set/provenance.json").exists()


def test_a_sample_that_validation_rejects_is_quarantined_and_extracted_again(fast: Workflow) -> None:
    assert fast.run("extract").returncode == 0
    key = fast.keys("00003")[1]
    path = next(fast.directory.glob(f"results/store/*/{key[:2]}/{key}.safetensors"))
    good = path.read_bytes()
    path.write_bytes(good[:-9] + bytes([good[-9] ^ 1]) + good[-8:])
    rejected = fast.run("validate")
    assert rejected.returncode != 0
    assert f"({key}): checksum" in fast.log("validate_batch/00003.log")
    summary = rejected.output.rpartition("\nresults/")[2]
    assert "1 sample: rejected by validation: checksum" in summary
    assert "logs/test/validate_batch" in summary
    assert not (fast.results / "validation/00003.json").exists()
    mended = fast.run("validate")
    assert mended.returncode == 0, mended.output
    assert list(mended.passes) == ["002/0"]
    assert mended.passes["002/0"]["samples_extracted"] == 1
    assert path.read_bytes() == good
    assert len(list(fast.directory.glob(f"results/store/*/quarantine/{key}.*.safetensors"))) == 1
    assert fast.run("validate").nothing_done


@pytest.mark.nightly  # test_replaced_target has another weight every day
def test_two_targets_that_differ_only_in_their_weights_share_no_sample(
    finished: Workflow, tmp_path: Path
) -> None:
    first = finished.stored()
    target = shutil.copytree(finished.config["target"]["path"], tmp_path / "tuned")
    weights = load_file(target / "model.safetensors")
    weights["lm_head.weight"] = -weights["lm_head.weight"]
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    finished.config["target"]["path"] = str(target)
    run = finished.run("extract")
    assert run.returncode == 0, run.output
    assert sum(ledger["samples_extracted"] for ledger in run.passes.values()) == len(first) == 10
    folders = [
        path
        for path in (finished.directory / "results/store").iterdir()
        if list(path.glob("??/*.safetensors"))
    ]
    assert [len(list(folder.glob("??/*.safetensors"))) for folder in folders] == [10, 10]
