"""The configuration: typed, frozen, unknown keys rejected, every error with its place."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from eagle3_data.config import (
    Compatibility,
    Extraction,
    Tokenization,
    load_config,
    load_section,
    read_config_file,
    write_sections,
)
from eagle3_data.errors import ConfigError

MINIMAL: dict[str, Any] = {"target": {"path": "model"}, "data": {"sources": [{"path": "rows.jsonl"}]}}


def changed(**sections: Any) -> dict[str, Any]:
    return {**MINIMAL, **sections}


def test_the_shortest_configuration_names_a_target_and_a_source() -> None:
    config = load_config(MINIMAL)
    assert config.data.sources[0].name == "rows"
    with pytest.raises(ValidationError):
        config.target.path = "other"  # type: ignore[misc]


TRANSFORMERS = "eagle3_data.engines.transformers:TransformersEngine"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "target: Field required"),
        (changed(extration={}), "extration: unknown key; did you mean `extraction`?"),
        (changed(target={"path": "m", "trust": True}), "target.trust: unknown key"),
        (
            changed(data={"sources": [{"path": "a", "layot": "x"}]}),
            "data.sources.0.layot: unknown key; did you mean `layout`?",
        ),
        (changed(data={"sources": [{"path": "a.jsonl"}, {"path": "b/a.json"}]}), "two sources are named 'a'"),
        (
            changed(extraction={"engine_arguments": {"dtype": "half"}}),
            "engine_arguments.dtype is set by the workflow; use extraction.dtype",
        ),
        (
            changed(extraction={"engine": TRANSFORMERS, "engine_arguments": {"seed": 1}}),
            "the transformers engine takes no engine_arguments (given: seed)",
        ),
        (
            changed(extraction={"engine": TRANSFORMERS, "tensor_parallel": 8}),
            "the transformers engine uses one device, tensor_parallel is 8",
        ),
        (
            changed(extraction={"storage_dtype": "fp8", "dtype": "float32"}),
            "storage_dtype fp8 is for states in bfloat16, and dtype is float32",
        ),
        (changed(extraction={"in_flight_tokens": 10}), "the longest sample would never be sent"),
        (changed(tokenization={"date": "2025-13-45"}), "date: 2025-13-45 is not a calendar date"),
        (changed(tokenization={"date": "01.02.2025"}), "tokenization.date: String should match pattern"),
        (
            changed(compatibility={"allow": ["disk-tigth"]}),
            "compatibility.allow: there is no finding 'disk-tigth'; did you mean disk-tight or disk-short?",
        ),
        (
            changed(compatibility={"allow": ["nonsense"]}),
            "compatibility.allow: there is no finding 'nonsense'; copy the id from the report",
        ),
        (changed(run="store"), "extraction.store (results/store) and the run's own results/store overlap"),
        (changed(target={"path": " "}), "target.path: is empty; set it to the checkpoint's directory"),
        (changed(run="../elsewhere"), "run: String should match pattern"),
    ],
)
def test_what_is_wrong_is_reported_with_its_place(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(values)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "store",
    [
        "results/demo",
        "./results/demo/",
        "results/demo/training_set",
        "results",
        "elsewhere/../logs/demo/x",
        "link",
    ],
)
def test_a_store_among_the_runs_own_outputs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("results/demo/extraction")
    with pytest.raises(ConfigError, match="overlap"):
        load_config(changed(extraction={"store": store}))
    with pytest.raises(ConfigError, match="overlap"):
        load_config(changed(extraction={"store": str(tmp_path / store)}))
    for beside in ("results/demo-store", "results/other/store", str(tmp_path.parent / "store")):
        load_config(changed(extraction={"store": beside}))


def test_a_wrong_source_is_not_reported_as_a_missing_one() -> None:
    with pytest.raises(ConfigError) as raised:
        load_config(changed(data={"sources": [{"path": "a", "layot": "x"}]}))
    assert "at least 1 item" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"data\.sources: Tuple should have at least 1 item"):
        load_config(changed(data={"sources": []}))


def test_yamls_unquoted_dates_are_dates() -> None:
    assert Tokenization.model_validate(yaml.safe_load("date: 2025-06-01")).date == "2025-06-01"


def test_yamls_unquoted_off_means_off() -> None:
    assert Compatibility.model_validate({"canary": False}).canary == "off"


def test_a_rule_gets_only_the_sections_it_names(tmp_path: Path) -> None:
    config = load_config(MINIMAL)
    path = write_sections(config, tmp_path, "extraction")
    assert set(json.loads(path.read_text())) == {"extraction", "format_version"}
    assert load_section(path, "extraction", Extraction) == config.extraction


def test_another_section_of_the_configuration_leaves_a_rules_file_as_it_is(tmp_path: Path) -> None:
    names = {
        write_sections(load_config(changed(tokenization={"max_length": length})), tmp_path, *sections).name
        for length in (100, 200)
        for sections in [("extraction",), ("tokenization", "extraction")]
    }
    assert sorted(name.rpartition("-")[0] for name in names) == [
        "extraction",
        "tokenization-extraction",
        "tokenization-extraction",
    ]


def test_a_rules_file_that_was_emptied_is_written_again(tmp_path: Path) -> None:
    config = load_config(MINIMAL)
    path = write_sections(config, tmp_path, "extraction")
    path.write_text("")
    assert write_sections(config, tmp_path, "extraction") == path
    assert load_section(path, "extraction", Extraction) == config.extraction


ARGUMENTS = """
extraction:
  engine_arguments:
    hf_overrides: {rms_norm_eps: 1.0e-5, rope_theta: 1e16, small: 1e-07, inner: [2E3, "8"]}
    note: "😀 {batch} {nonsense} ${x}"
    day: 2025-01-01
    whole: 3
    endless: .inf
    nothing: null
    flag: yes
"""


def test_what_the_workflow_reads_is_what_the_scripts_read(tmp_path: Path) -> None:
    config = load_config(changed(**yaml.safe_load(ARGUMENTS)))
    assert config.extraction.engine_arguments == {
        "hf_overrides": {"rms_norm_eps": 1e-5, "rope_theta": 1e16, "small": 1e-7, "inner": [2e3, "8"]},
        "note": "😀 {batch} {nonsense} ${x}",
        "day": "2025-01-01",
        "whole": 3,
        "endless": float("inf"),
        "nothing": None,
        "flag": True,
    }
    read = load_section(write_sections(config, tmp_path, "extraction"), "extraction", Extraction)
    assert read == config.extraction
    both = [dict(section.engine_arguments) for section in (read, config.extraction)]
    assert len({json.dumps(arguments, sort_keys=True) for arguments in both}) == 1, "types included: 3 == 3.0"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"run: a\nextraction:\n  jobs: 1\n  dtype: float32\n  jobs: 2\n",
            "`jobs` is given twice, in line 3",
        ),
        (b"run: a\nrun: b\n", "`run` is given twice, in line 1 and line 2"),
        (b'{"run": "a", "data": {"x": 1, "x": 2}}', "`x` is given twice"),
        ("run: caf\u00e9".encode("latin-1"), "is not UTF-8 text (byte 8); save it as UTF-8"),
        (b"a: " + b"[" * 1000 + b"]" * 1000, "is nested too deeply"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is nested too deeply"),
        (b"- 1\n", "must hold a mapping"),
        (b"", "must hold a mapping"),
        (b"a: [", "cannot be read as YAML or JSON"),
    ],
    ids=[
        "twice",
        "twice-on-top",
        "twice-in-json",
        "latin-1",
        "deep-yaml",
        "deep-json",
        "list",
        "empty",
        "cut",
    ],
)
def test_a_config_file_that_cannot_be_used_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as raised:
        read_config_file(path)
    assert message in str(raised.value)
    assert str(path) in str(raised.value)


def test_a_script_by_hand_takes_a_file(tmp_path: Any) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("extraction: {jobs: 3}")
    assert load_section(str(path), "extraction", Extraction).jobs == 3
    with pytest.raises(ConfigError, match="cannot be read"):
        load_section(str(tmp_path / "absent.yaml"), "extraction", Extraction)


def test_a_weight_above_one_says_how_to_have_the_same_mixture():
    sources = [{"path": "a.jsonl", "weight": 4}, {"path": "b.jsonl", "name": "other"}]
    with pytest.raises(ConfigError) as caught:
        load_config(changed(data={"sources": sources}))
    assert "set the weights a.jsonl: 1, other: 0.25, and train 4 times as many epochs" in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"generation": {"n": 2}}, "at temperature 0 all answers to a question are the same"),
        ({"generation": {"engine_arguments": {"max_model_len": 9}}}, "use tokenization.max_length"),
        (
            {"generation": {"responses": "target"}, "tokenization": {"train_on": "last"}},
            "choose them with generation.turns",
        ),
        (
            {"generation": {"responses": "target"}, "tokenization": {"hidden_reasoning": "own_row"}},
            "leave it at 'leave_out'",
        ),
        ({"generation": {"store": "results/store/answers"}}, "overlap; give each its own directory"),
        ({"generation": {"store": "results/demo"}}, "rerunning a rule could delete"),
        (
            {
                "generation": {"responses": "target"},
                "data": {"sources": [{"path": "a.jsonl", "layout": "tokens"}]},
            },
            "has no questions that the target could answer",
        ),
    ],
)
def test_what_generation_cannot_do_is_refused_in_words(values, message):
    base = {"target": {"path": "t"}, "data": {"sources": [{"path": "a.jsonl"}]}}
    with pytest.raises(ConfigError, match=message):
        load_config({**base, **values})
