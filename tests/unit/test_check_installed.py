"""The check as the workflow's rule runs it: the installed packages, the target, the tokenized data."""

import argparse
import functools
import json
import runpy
import sys
import types
from pathlib import Path

import pytest
from checked_targets import LLAMA, SCRIPT, run

from eagle3_data.compatibility.run import installed
from eagle3_data.compatibility.run.installed import not_checked
from eagle3_data.compatibility.vllm.engine_class import check_engine
from eagle3_data.config import Compatibility, Extraction
from eagle3_data.errors import CompatibilityError, ConfigError
from eagle3_data.records import read_json, write_json
from eagle3_data.system import devices
from eagle3_data.target import TargetDescription
from tiny_tokenizer import TEMPLATES, save_tokenizer

ENGINES = Path(__file__).parents[1] / "engines"
TRANSFORMERS = "eagle3_data.engines.transformers:TransformersEngine"


@pytest.fixture(autouse=True)
def imported(monkeypatch):
    """The modules that would be imported: that takes half a minute and is tested on its own."""
    asked = []
    stand_in = types.SimpleNamespace(finish=list)
    monkeypatch.setattr(installed, "Importing", lambda modules: asked.extend(modules) or stand_in)
    return asked


@pytest.fixture(autouse=True, scope="module")
def read_once():
    """The installed packages' sources, which each check reads: they do not change between tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(installed, "installed_tree", functools.cache(installed.installed_tree))
        yield


@pytest.fixture
def target(tmp_path):
    """A checkpoint directory without weights, its record, and the record of its tokenized data."""
    directory = tmp_path / "target"
    directory.mkdir()
    size = len(save_tokenizer(directory, (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8")))
    (directory / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": size}))
    description = TargetDescription(
        str(directory),
        "LlamaForCausalLM",
        "LlamaForCausalLM",
        "llama",
        8,
        64,
        size,
        4096,
        "none",
        1,
        False,
        "0" * 32,
    )
    write_json(tmp_path / "target.json", description.to_json())
    write_json(tmp_path / "batches.json", {"batches": {}, "samples": 10, "tokens": 1000, "longest": 200})
    return directory


def judge(tmp_path, capsys, **sections):
    """Run the script's `installed` in this process: transformers, which takes seconds to import, is imported
    once."""
    config = {"target": {"path": str(tmp_path / "target")}, "extraction": {"store": str(tmp_path / "store")}}
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = argparse.Namespace(
        config=str(tmp_path / "config.json"),
        target=str(tmp_path / "target.json"),
        batches=str(tmp_path / "batches.json"),
        output=str(tmp_path / "report.json"),
    )
    try:
        runpy.run_path(str(SCRIPT))["installed"](arguments)
    except CompatibilityError as error:
        return error, capsys.readouterr().err
    return None, capsys.readouterr().err


def test_a_run_that_will_work_leaves_its_report(tmp_path, target, imported, capsys):
    error, shown = judge(tmp_path, capsys)
    assert error is None, shown
    assert imported == ["vllm.model_executor.models.llama"]
    record = read_json(tmp_path / "report.json")
    assert record["verdict"] == "pass" and [f for f in record["findings"] if f["level"] == "fail"] == []
    assert record["elapsed_s"] > 0 and "PASS in" in shown
    assert "PASS in" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "report.failed.json").exists()


def test_a_run_that_will_fail_leaves_its_report_beside_the_output(tmp_path, target, capsys):
    error, shown = judge(tmp_path, capsys, extraction={"layers": [2, 2, 8], "tensor_parallel": 3})
    assert "duplicate-layer" in shown
    assert not (tmp_path / "report.json").exists() and not (tmp_path / "report.html").exists()
    page = (tmp_path / "report.failed.html").read_text()
    assert "duplicate-layer" in page and "FAIL in" in page
    failed = read_json(tmp_path / "report.failed.json")
    assert {f["id"] for f in failed["findings"] if f["level"] == "fail"} == {
        "duplicate-layer",
        "heads-do-not-divide",
    }
    assert "report.failed.json" in str(error) and "compatibility.allow" in str(error)


def test_the_rules_command_line_exits_1_with_the_message_and_without_a_traceback(tmp_path, target):
    config = {
        "target": {"path": str(target), "trust_remote_code": False},
        "extraction": {"layers": [9], "engine": TRANSFORMERS, "store": str(tmp_path)},
    }
    arguments = (
        "--target",
        tmp_path / "target.json",
        "--batches",
        tmp_path / "batches.json",
        "--output",
        tmp_path / "report.json",
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = run("installed", "--config", tmp_path / "config.json", *arguments)
    assert done.returncode == 1
    assert (
        "CompatibilityError: extraction would fail (layer-out-of-range, last-layer-missing)" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_findings_accepted_in_the_configuration_stay_in_the_report_and_let_the_run_go_on(
    tmp_path, target, capsys
):
    assert judge(tmp_path, capsys, extraction={"tensor_parallel": 3})[0] is not None
    error, _ = judge(
        tmp_path, capsys, extraction={"tensor_parallel": 3}, compatibility={"allow": ["heads-do-not-divide"]}
    )
    assert error is None
    assert [
        (f["id"], f["accepted"])
        for f in read_json(tmp_path / "report.json")["findings"]
        if f["level"] == "fail"
    ] == [("heads-do-not-divide", True)]
    assert not list(tmp_path.glob("report.failed.*")), "the report of the failed attempt is out of date"


def test_a_value_of_the_wrong_kind_among_the_engine_arguments_is_a_fault_of_the_configuration(
    tmp_path, target, capsys
):
    with pytest.raises(
        ConfigError, match="pipeline_parallel_size must be a whole number from 1 on, not 'two'"
    ):
        judge(tmp_path, capsys, extraction={"engine_arguments": {"pipeline_parallel_size": "two"}})


def test_the_engine_must_have_room_for_the_longest_sample_and_one_token_more(tmp_path, target, capsys):
    assert judge(tmp_path, capsys, tokenization={"max_length": 8191})[0] is None
    error, _ = judge(tmp_path, capsys, tokenization={"max_length": 8192})
    assert "too-long" in str(error)


def test_an_engine_that_is_not_vllm_is_not_judged_by_vllm(tmp_path, target, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ENGINES))
    assert (
        judge(tmp_path, capsys, extraction={"engine": "fake_engine:FakeEngine", "tensor_parallel": 3})[0]
        is None
    )


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("eagle3_data.engines.vlm.engine:VllmEngine", "there is no module eagle3_data.engines.vlm"),
        ("eagle3_data.engines.vllm.engine:VllmEngin", "has no VllmEngin"),
        ("no_such_package.engine:Engine", "there is no module no_such_package"),
        ("fake_engine:FakeEngin", "has no FakeEngin"),
        ("json.tool.deeper:Engine", "there is no module json.tool.deeper"),
    ],
)
def test_an_engine_that_does_not_exist_fails_before_any_job_is_asked_for(
    tmp_path, target, capsys, monkeypatch, engine, words
):
    monkeypatch.syspath_prepend(str(ENGINES))
    error, shown = judge(tmp_path, capsys, extraction={"engine": engine})
    assert "engine-unknown" in str(error) and words in " ".join(shown.split())
    if "eagle3_data" in engine:
        assert "did you mean eagle3_data.engines.vllm.engine:VllmEngine" in " ".join(shown.split())


@pytest.mark.parametrize(
    "engine",
    [
        "fake_engine:FakeEngine",
        "faulty_vllm:FaultyVllmEngine",
        "faulty_transformers:TransformersEngine",
        "late:Engine",
    ],
)
def test_an_engine_is_found_where_the_job_would_import_it_and_is_not_imported(tmp_path, monkeypatch, engine):
    (tmp_path / "late.py").write_text("def __getattr__(name): ...\n")  # says only when asked what it has
    monkeypatch.syspath_prepend(str(ENGINES))
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    assert check_engine(engine) == []
    assert engine.split(":")[0] not in set(sys.modules) - before


def test_an_engine_in_the_working_directory_is_found_as_its_process_finds_it(tmp_path, monkeypatch):
    (tmp_path / "local_engine.py").write_text("class Engine: ...\n")
    assert [finding.id for finding in check_engine("local_engine:Engine")] == ["engine-unknown"]
    monkeypatch.chdir(tmp_path)
    assert check_engine("local_engine:Engine") == []
    (tmp_path / "bare").mkdir()
    (finding,) = check_engine("bare:Engine")
    assert finding.id == "engine-unknown" and "bare has no Engine" in finding.title


def test_a_run_on_token_ids_needs_no_template_of_the_checkpoint(tmp_path, target, capsys):
    (target / "chat_template.jinja").unlink(missing_ok=True)
    save_tokenizer(target, None)
    error, shown = judge(tmp_path, capsys)
    assert error is None and "WARN no-chat-template" in shown


def test_what_could_not_be_checked_is_said_with_the_reason(tmp_path, target, capsys, monkeypatch):
    def unchecked(**changes):
        values = {"extraction": Extraction(), "compatibility": Compatibility(), **changes}
        return not_checked(TargetDescription.read(tmp_path / "target.json"), **values)

    monkeypatch.setattr(devices, "smallest_memory", lambda: 80 << 30)
    assert unchecked() == []
    (told,) = unchecked(compatibility=Compatibility(canary="off"))
    assert "compatibility.canary is off" in told
    (told,) = unchecked(extraction=Extraction(engine=TRANSFORMERS))
    assert f"extraction.engine is {TRANSFORMERS}" in told
    monkeypatch.setattr(devices, "smallest_memory", lambda: None)
    (told,) = unchecked()
    assert "this machine has no GPU and compatibility.device_memory_gib is not set" in told
    assert unchecked(compatibility=Compatibility(device_memory_gib=80)) == []
    config = json.loads((target / "config.json").read_text())
    del config["max_position_embeddings"]
    (target / "config.json").write_text(json.dumps(config))
    assert "config.json has no max_position_embeddings" in unchecked()[1]
    _, shown = judge(tmp_path, capsys)
    assert "not checked: device memory" in " ".join(shown.split())
