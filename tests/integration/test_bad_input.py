"""Bad input under real Snakemake: one clear message that names the place and the remedy, a non-zero exit,
nothing half-written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from integration.fixtures import fast_config
from integration.workflow import Workflow, conversation, write_jsonl

pytestmark = pytest.mark.slow


def unknown_key(workflow: Workflow) -> None:
    workflow.config["extraction"]["tensor_paralel"] = 8


def missing_source(workflow: Workflow) -> None:
    (workflow.directory / "data.jsonl").unlink()


def unreadable_line(workflow: Workflow) -> None:
    with open(workflow.directory / "data.jsonl", "a") as file:
        file.write('{"messages": [\n')


def no_config(workflow: Workflow) -> None:
    (workflow.directory / "target/config.json").unlink()


def no_tokenizer(workflow: Workflow) -> None:
    (workflow.directory / "target/tokenizer.json").unlink()


def no_weights(workflow: Workflow) -> None:
    (workflow.directory / "target/model.safetensors").unlink()


def no_target(workflow: Workflow) -> None:
    shutil.rmtree(workflow.directory / "target")


def target_like_an_option(workflow: Workflow) -> None:
    workflow.config["target"]["path"] = "--no-such-target"


def no_chat_template(workflow: Workflow) -> None:
    (workflow.directory / "target/chat_template.jinja").unlink()


def layer_out_of_range(workflow: Workflow) -> None:
    workflow.config["extraction"]["layers"] = [2, 4, 8, 9]


def layer_twice(workflow: Workflow) -> None:
    workflow.config["extraction"]["layers"] = [2, 4, 4, 8]


def last_layer_missing(workflow: Workflow) -> None:
    workflow.config["extraction"]["layers"] = [2, 4, 5]


BAD: list[tuple[Callable[[Workflow], None], list[str]]] = [
    # what is wrong, what the user must read
    (unknown_key, ["extraction.tensor_paralel: unknown key; did you mean `tensor_parallel`?"]),
    (missing_source, ["data.jsonl"]),
    (unreadable_line, ["data.jsonl", "11"]),
    (no_config, ["has no config.json", "target.path"]),
    (no_tokenizer, ["has no tokenizer", "copy the model's tokenizer files there"]),
    (no_weights, ["holds no safetensors weights"]),
    (no_target, ["there is no directory target", "target.path"]),
    (target_like_an_option, ["there is no directory --no-such-target", "target.path"]),
    (no_chat_template, ["chat template"]),
    (layer_out_of_range, ["layer-out-of-range", "layer id 9 is outside 0..8"]),
    (layer_twice, ["duplicate-layer", "layer id 4 is given twice"]),
    (last_layer_missing, ["last-layer-missing", "the ids must include the last layer, 8"]),
]


LIKE_ANOTHER = {no_config, no_target, layer_twice, last_layer_missing}
"""Found by a rule that finds another of these, too, and covered by tests of what that rule calls."""


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        pytest.param(
            *case, id=case[0].__name__, marks=[pytest.mark.nightly] if case[0] in LIKE_ANOTHER else []
        )
        for case in BAD
    ],
)
def test_bad_input_is_explained(
    tmp_path: Path, tiny_llama: Path, spoil: Callable[[Workflow], None], expected: list[str]
) -> None:
    shutil.copytree(tiny_llama, tmp_path / "target")
    write_jsonl(tmp_path / "data.jsonl", [conversation(number) for number in range(10)])
    workflow = Workflow(tmp_path, fast_config(Path("target")))
    spoil(workflow)
    run = workflow.run("extract")
    assert run.returncode != 0
    told = " ".join(run.output.split())
    for words in expected:
        assert words in told
    assert "Traceback" not in run.output
    assert not list(workflow.results.glob("extraction/**/*.json")), "no pass may start"
    assert all(json.loads(path.read_text()) for path in workflow.directory.glob("results/**/*.json"))
    assert not list(workflow.directory.glob("results/**/*.part"))


def test_a_key_given_twice_in_the_default_configuration_is_named(tmp_path: Path, tiny_llama: Path) -> None:
    workflow = Workflow(tmp_path, fast_config(tiny_llama))
    project = workflow.copy_project()
    with open(project / "config/config.yaml", "a", encoding="utf-8") as file:
        file.write("\ntarget:\n  path: other\n")
    run = subprocess.run(
        [sys.executable, "-m", "snakemake", "-s", str(project / "Snakefile"), "--cores", "1", "--dry-run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode != 0
    assert "config/config.yaml: the key `target` is given twice, in line" in run.stdout + run.stderr


OBEYING_MODES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root without the right to read what its mode forbids."""


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root reads everything")
def test_a_tokenizer_that_may_not_be_read_is_named(tmp_path: Path, tiny_llama: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path / "target")
    write_jsonl(tmp_path / "data.jsonl", [conversation(number) for number in range(10)])
    workflow = Workflow(tmp_path, fast_config(Path("target")))
    (tmp_path / "target/tokenizer.json").chmod(0)
    prefix = OBEYING_MODES if os.geteuid() == 0 else ()
    run = subprocess.run(
        [*prefix, *workflow.arguments("extract")],
        cwd=tmp_path,
        env=workflow.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    told = " ".join((run.stdout + run.stderr).split())
    assert run.returncode != 0 and "Traceback" not in told
    assert "target/tokenizer.json cannot be read (Permission denied); check its permissions" in told
