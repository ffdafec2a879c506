"""The trial import of the target's modules: what it says of each way in which one fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3_data.compatibility.run import importing
from eagle3_data.compatibility.run.importing import Importing
from eagle3_data.compatibility.run.installed import modules_of
from eagle3_data.compatibility.source.source_tree import installed_tree
from eagle3_data.findings import Finding
from tiny_tokenizer import describe

VLLM_MODELS = "vllm.model_executor.models"


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Imports a module with the given source; says what was found."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(source: str, name: str = "a_model") -> list[Finding]:
        (tmp_path / f"{name}.py").write_text(
            f"{source}\nopen({str(tmp_path / 'imported')!r}, 'a').write('.')\n"
        )
        return Importing([name], tmp_path / "cache").finish()

    return run


def test_what_could_be_imported_is_not_imported_again_until_the_packages_change(
    attempt, tmp_path, monkeypatch
) -> None:
    assert attempt("print('noise')") == attempt("") == []
    assert (tmp_path / "imported").read_text() == "."
    monkeypatch.setattr(importing.metadata, "distributions", list)
    assert attempt("") == []
    assert (tmp_path / "imported").read_text() == ".."


@pytest.mark.parametrize(
    ("source", "level", "words"),
    [
        (
            "import torchvision_of_nobody",
            "fail",
            "ModuleNotFoundError: No module named 'torchvision_of_nobody'",
        ),
        (
            "from json import no_such_name",
            "fail",
            "ImportError: cannot import name 'no_such_name' from 'json'",
        ),
        (
            "try:\n    import absent.deeper\nexcept ImportError as e:\n    raise ValueError('far') from e",
            "fail",
            "No module named 'absent'",
        ),
        ("raise ImportError('libcuda.so.1: cannot open shared object file')", "unknown", "libcuda.so.1"),
        ("raise RuntimeError('No CUDA GPUs are available')", "unknown", "No CUDA GPUs"),
        ("assert False", "unknown", "AssertionError"),
        ("import os; os.abort()", "unknown", "exit code -6"),
        ("raise SystemExit(3)", "unknown", "SystemExit: 3"),
        ("import time; time.sleep(60)", "unknown", "took more than 1 s"),
    ],
)
def test_an_import_that_fails_is_a_finding_and_is_tried_again(attempt, monkeypatch, source, level, words):
    monkeypatch.setattr(importing, "TIMEOUT_S", 1.0 if "sleep" in source else 60.0)
    for _ in range(2):
        (finding,) = attempt(source)
        assert (finding.id, finding.level) == ("module-not-importable", level)
        assert words in finding.title and "a_model" in finding.title and finding.remedy
        if "sleep" in source:
            break


def test_of_a_package_that_our_environment_leaves_out_the_remedy_says_where_the_right_build_is(attempt):
    (finding,) = attempt("raise ModuleNotFoundError(\"No module named 'torchvision'\", name='torchvision')")
    assert "download.pytorch.org" in finding.remedy and importing.metadata.version("torch") in finding.remedy


def test_a_place_that_cannot_be_written_only_costs_the_next_check_its_import(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "fine.py").write_text("")
    (tmp_path / "cache").write_text("a file in the way")
    assert Importing(["fine"], tmp_path / "cache").finish() == []


def test_the_modules_of_a_wrapper_are_its_own_and_its_language_models(tmp_path):
    from dataclasses import replace

    tree = installed_tree("vllm")
    kimi = replace(describe(tmp_path, 1), architecture="KimiK25ForConditionalGeneration")
    kimi = replace(kimi, text_architecture="DeepseekV3ForCausalLM")
    assert modules_of(tree, kimi) == [f"{VLLM_MODELS}.kimi_k25", f"{VLLM_MODELS}.deepseek_v2"]
    assert modules_of(tree, replace(kimi, architecture="Nobody", text_architecture="Nobody")) == []


@pytest.mark.slow
def test_the_installed_vllm_has_llama_and_without_torchvision_no_qwen3_vl(tmp_path):
    modules = [f"{VLLM_MODELS}.llama", f"{VLLM_MODELS}.qwen3_vl"]
    found = Importing(modules, tmp_path).finish()
    has_torchvision = any(d.name == "torchvision" for d in importing.metadata.distributions())
    assert [finding.level for finding in found] == ([] if has_torchvision else ["fail"])
    assert has_torchvision or found[0].title.startswith(modules[1])
    assert has_torchvision or "torchvision" in found[0].title + found[0].remedy
