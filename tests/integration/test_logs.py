"""Whatever happens to a rule's script, its log says so: design of the `shell: exec ... 2> {log}` pattern,
tested on every rule."""

from __future__ import annotations

import shutil
from itertools import cycle, product
from pathlib import Path

import pytest

from integration.workflow import Workflow

# One group: its tests share a run that takes a minute to make.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("logs")]

RULES = {
    # rule: (what to delete so that it must run, the target that runs it, its log)
    "describe_target": ("results/test/target.json", "results/test/target.json", "describe_target.log"),
    "tokenize_dataset": ("results/test/tokens", "results/test/tokens/batches.json", "tokenize_dataset.log"),
    "check_compatibility": (
        "results/test/compatibility",
        "results/test/compatibility/report.json",
        "check_compatibility.log",
    ),
    "extract_pass": ("results/store", "results/test/extraction/batches/00000.json", "extract_pass/002/0.log"),
    "extract_batch": (
        "results/test/extraction/batches/00000.json",
        "results/test/extraction/batches/00000.json",
        "extract_batch/00000.log",
    ),
    "validate_pass": (
        "results/test/validation/passes",
        "results/test/validation/00000.json",
        "validate_pass/002/001/0.log",
    ),
    "validate_batch": (
        "results/test/validation/00000.json",
        "results/test/validation/00000.json",
        "validate_batch/00000.log",
    ),
    "prove_target": ("results/test/reference.json", "results/test/reference.json", "prove_target.log"),
    "assemble_training_set": (
        "results/test/training_set",
        "results/test/training_set",
        "assemble_training_set.log",
    ),
}
FAULTS = {
    # fault: (the line put in front of the script, what its log must hold)
    "broken-import": (
        "import a_module_that_does_not_exist",
        "ModuleNotFoundError: No module named 'a_module_that_does_not_exist'",
    ),
    "file-descriptor-2": (
        "import os, sys; os.write(2, b'straight to descriptor 2'); sys.exit(1)",
        "straight to descriptor 2",
    ),
    "killed-child": (
        "import subprocess; subprocess.run(['sh', '-c', 'kill -9 $$'], check=True)",
        "died with <Signals.SIGKILL: 9>",
    ),
    "own-segfault": (
        "import faulthandler, ctypes; faulthandler.enable(); ctypes.string_at(0)",
        "Segmentation fault",
    ),
}


EVERY_PAIR = list(product(RULES, FAULTS))
EVERY_RULE_AND_FAULT = list(zip(RULES, cycle(FAULTS), strict=False))


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory, tokenized_template: Workflow) -> Workflow:
    """The ten conversations, to the assembled set, run from a copy of the
    project."""
    workflow = tokenized_template.copy(tmp_path_factory.mktemp("assembled") / "run")
    workflow.copy_project()
    run = workflow.run("all")
    assert run.returncode == 0, run.output
    return workflow


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        pytest.param(*pair, marks=[] if pair in EVERY_RULE_AND_FAULT else [pytest.mark.nightly])
        for pair in EVERY_PAIR
    ],
)
def test_a_rule_that_breaks_leaves_the_reason_in_its_log(
    assembled: Workflow, tmp_path: Path, rule: str, fault: str
) -> None:
    gone, target, log = RULES[rule]
    line, expected = FAULTS[fault]
    workflow = assembled.copy(tmp_path / "run")
    workflow.root = workflow.directory / "project"
    path = workflow.directory / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    script = workflow.root / f"scripts/{rule}.py"
    script.write_text(f"{line}\n{script.read_text()}")
    run = workflow.run(target)
    assert run.returncode != 0
    assert expected in workflow.log(log)
    assert expected in run.output, "the cause belongs on the screen, too"
