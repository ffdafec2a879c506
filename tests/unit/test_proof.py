"""What must hold before the target is loaded: when the canary runs again, and what is said when it dies."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from eagle3_data.engines.base import EngineSettings
from eagle3_data.engines.log import reported_kernels
from eagle3_data.extraction import proof
from eagle3_data.extraction.proof import Proof, kernels_not_covered, prove_engine
from eagle3_data.findings import IDS
from eagle3_data.system import environment

SETTINGS = EngineSettings("e:E", "target", (2,), "bfloat16", 1, 64, False, "states")
LOG = """\
INFO [cuda.py:407] Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].
(EngineCore pid=7) INFO [gpu_worker.py:198] Using V2 Model Runner
(Worker_TP0 pid=8) INFO [fp8.py:418] Using DEEPGEMM Fp8 MoE backend out of potential backends: []
(Worker_TP1 pid=9) INFO [fp8.py:418] Using DEEPGEMM Fp8 MoE backend out of potential backends: []
INFO [__init__.py:759] Selected CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod
INFO [arg_utils.py:1] Using max model len 65
INFO [cpu_model_runner.py:68] Starting to load model /models/secret...
WARNING [vllm.py:725] Model Runner V2 requires Triton; using the V1 model runner instead.
INFO [utils.py:347] Using LBHNC KV cache layout.
"""
KERNELS = [
    "Selected CutlassFP8ScaledMMLinearKernel for Fp8LinearMethod",
    "Using DEEPGEMM Fp8 MoE backend",
    "Using FLASH_ATTN attention backend",
    "Using LBHNC KV cache layout",
    "Using V2 Model Runner",
    "model runner cpu_model_runner",
    "using the V1 model runner instead",
]
PASSES = """
import json, sys
output = sys.argv[sys.argv.index("--output") + 1]
open(output, "w").write(json.dumps({"format_version": 1, "findings": [], "verdict": "pass"}))
print(%r)
"""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Proves the engine with a stand-in for scripts/run_canary.py; counts how often that ran."""
    for name in environment.vllm_variables():
        monkeypatch.delenv(name)
    monkeypatch.setattr(environment, "device_names", lambda: ["NVIDIA H200"])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    started = []

    class Counted(proof.Child):
        def __init__(self, module: str, *arguments: object, **options: object) -> None:
            started.append(module)
            super().__init__("stand_in", *arguments, **options)

    monkeypatch.setattr(proof, "Child", Counted)

    def prove(code: str = PASSES % LOG, settings: EngineSettings = SETTINGS) -> tuple[Proof, bool]:
        """The proof, and whether a canary ran for it."""
        before = len(started)
        (tmp_path / "stand_in.py").write_text(code)
        verdicts = tmp_path / "canary"
        verdicts.mkdir(exist_ok=True)
        stop = threading.Event()
        found = prove_engine(settings, (), verdicts, tmp_path / "work", tmp_path / "engine.log", stop)
        return found, len(started) > before

    return prove


def test_a_verdict_holds_as_long_as_nothing_that_it_depends_on_changes(canary, monkeypatch) -> None:
    assert canary() == (Proof(True, kernels=tuple(KERNELS)), True)
    assert canary() == (Proof(True, kernels=tuple(KERNELS)), False)
    for name, value in (
        ("VLLM_USE_V2_MODEL_RUNNER", "1"),
        ("VLLM_ATTENTION_BACKEND", "TRITON_ATTN"),
        ("VLLM_ATTENTION_BACKEND", "FLASHINFER"),
        ("VLLM_A_VARIABLE_OF_TOMORROW", "1"),
        ("VLLM_A_VARIABLE_OF_TOMORROW", ""),
    ):
        monkeypatch.setenv(name, value)
        assert [canary()[1], canary()[1]] == [True, False], name
    monkeypatch.setattr(environment, "device_names", lambda: ["NVIDIA A100"])
    assert canary()[1]
    monkeypatch.setattr(environment.metadata, "version", lambda name: "9.9")
    assert canary()[1]
    monkeypatch.setenv("HOME", "/elsewhere")
    assert not canary()[1]


def test_a_verdict_records_what_it_was_computed_with_and_no_secret(canary, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    secrets = {
        "VLLM_API_KEY": "sk-secret",
        "VLLM_USE_HF_TOKEN": "hf_secret",
        "VLLM_PLUGIN_OF_MINE": "secret",
        "VLLM_LORA_RESOLVER_HF_REPO_LIST": "https://user:secret@host",
        "VLLM_USE_PROXY": "https://user:secret@host",
    }
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    canary()
    (path,) = (tmp_path / "canary").glob("*.json")
    record = json.loads(path.read_text())
    assert record["environment"] == {**dict.fromkeys(secrets, "(hidden)"), "VLLM_USE_V2_MODEL_RUNNER": "1"}
    assert record["kernels"] == KERNELS
    assert "secret" not in path.read_text() + path.name + "".join(capsys.readouterr())
    monkeypatch.setenv("VLLM_API_KEY", "sk-another-secret")
    assert canary()[1]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import sys; sys.exit(1)", ["ended with exit code 1"]),
        (
            "import no_such_module",
            ["ended with exit code 1", "ModuleNotFoundError: No module named 'no_such_mo"],
        ),
        ("raise KeyError('tie_word_embeddings')", ["KeyError: 'tie_word_embeddings'"]),
        ("import os; os.kill(os.getpid(), 9)", ["was killed by SIGKILL", "out-of-memory"]),
        ("import os; os._exit(0)", ["ended with exit code 0"]),
        ("assert False", ["AssertionError"]),
    ],
)
def test_a_canary_that_dies_always_says_why(canary, code, words) -> None:
    canary("raise ValueError('of the attempt before')")
    found, _ = canary(code)
    (finding,) = found.findings
    assert not found.holds and (finding.id, finding.level) == ("canary-died", "fail")
    for text in words:
        assert text in finding.title and text in found.failure.causes[0]
    assert "of the attempt before" not in finding.title
    assert finding.remedy and "engine.log" in found.failure.message


def test_the_words_of_an_earlier_failure_are_not_those_of_a_canary_that_dies_now(canary) -> None:
    layer = '{"id": "canary-layer", "level": "fail", "title": "t", "remedy": "", "accepted": False}'
    failing = PASSES.replace("open(output", 'open(output.replace(".json", ".failed.json")')
    failing = failing.replace('"findings": []', f'"findings": [{layer}]')
    assert [finding.id for finding in canary(failing % LOG)[0].findings] == ["canary-layer"]
    assert [finding.id for finding in canary("raise SystemExit(3)")[0].findings] == ["canary-died"]


def test_kernels_are_read_from_the_part_of_the_log_that_is_this_engines(tmp_path) -> None:
    log = tmp_path / "engine.log"
    before = "INFO Using TRITON_ATTN attention backend out of potential backends\n"
    log.write_text(before + LOG)
    assert reported_kernels(log, len(before)) == KERNELS
    assert "Using TRITON_ATTN attention backend" in reported_kernels(log)
    assert reported_kernels(tmp_path / "nowhere") == []


def test_what_the_target_runs_with_and_the_canary_did_not_is_unknown() -> None:
    with_canary = Proof(True, kernels=tuple(KERNELS))
    assert kernels_not_covered(with_canary, KERNELS[:2]) == []
    (finding,) = kernels_not_covered(with_canary, [*KERNELS, "Using MARLIN WNA16 MoE backend"])
    assert (finding.id, finding.level) == ("canary-kernels", "unknown")
    assert finding.id in IDS and finding.title.endswith(": Using MARLIN WNA16 MoE backend")
    assert kernels_not_covered(Proof(True), KERNELS) == []  # no canary ran, or not with vLLM


def test_without_a_gpu_the_processor_is_the_machine(monkeypatch) -> None:
    monkeypatch.setattr(environment, "device_names", list)
    architecture, flags = environment.machine()
    assert architecture and flags.startswith(("flags", "Features"))
