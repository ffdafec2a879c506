"""Diagnosis of engine logs. The logs in tests/data/logs were made by really running vLLM into each fault (see
its README)."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_data.diagnosis import diagnose
from eagle3_data.diagnosis.catalogue import FAULTS, NOISE
from eagle3_data.diagnosis.log_lines import parse_lines

LOGS = Path(__file__).parents[1] / "data" / "logs"
SCRIPT = Path(__file__).parents[2] / "scripts" / "diagnose_log.py"
EXPECTED = {
    "deepseek_without_topk_method": (
        "checkpoint-misfit",
        "KeyError: 'layers.1.mlp.gate.e_score_correction_bias'",
    ),
    "disk_full": ("disk-full", "No space left on device"),
    "engine_killed": ("engine-died", "engine core exited unexpectedly"),
    "head_size_unsupported": ("head-size-unsupported", "head_dim=16"),
    "heads_do_not_divide": (
        "heads-do-not-divide",
        "attention heads (4) must be divisible by tensor parallel size (3)",
    ),
    "layer_given_twice": (
        "layer-not-captured",
        "The expanded size of the tensor (4) must match the existing size (3)",
    ),
    "layer_zero_of_deepseek": ("layer-zero", "unsupported operand type(s) for +: 'Tensor' and 'NoneType'"),
    "longer_than_the_model": ("too-long", "max_model_len (4096) is greater than"),
    "model_that_captures_nothing": ("layer-not-captured", "too many values to unpack (expected 2)"),
    "model_without_eagle3": ("not-eagle3", "Model does not support EAGLE3 interface"),
    "no_main_guard": ("no-main-guard", "An attempt has been made to start a new process"),
    "no_room_for_the_cache": ("cache-too-small", "max seq len (9000000)"),
    "stock_connector_on_cpu": ("connector-needs-cuda", "pin_memory=True requires a CUDA"),
    "too_few_numa_nodes": ("too-few-numa-nodes", "Not enough allowed NUMA nodes"),
    "truncated_weights": ("checkpoint-torn", "Error while deserializing header"),
    "unknown_architecture": ("architecture-unregistered", "NobodysForCausalLM"),
    "unknown_engine_argument": ("unknown-engine-argument", "'max_num_batched_token'"),
    "unknown_method_key": ("unknown-configuration-key", "layer_ids"),
    "weights_of_another_model": ("checkpoint-misfit", "There is no module or parameter named 'transformer'"),
    "write_error_only_logged": ("write-error", "Hidden-states write failed for req_id="),
    "v016_assert_in_worker": (
        "bare-error",
        "AssertionError without a message, raised by `assert len(layer_ids) == 3`",
    ),
    "v016_cache_configuration": ("unexpected-argument", "'kv_cache_specs'"),
    "v016_embeddings": (
        "missing-model-method",
        "'LlamaModel' object has no attribute 'get_input_embeddings'",
    ),
    "v016_empty_message": ("empty-message", "`ERROR in batch 0-8:`, nothing after the colon"),
    "v016_mla_on_cpu": ("mla-unsupported", "MLA is not supported on CPU"),
    "v016_model_refused": ("not-eagle3", "does not support hidden state extraction"),
    "v016_no_driver": ("no-device", "Found no NVIDIA driver"),
    "v016_scheduler": ("missing-argument", "'block_size'"),
    "v016_story": ("missing-argument", "is_encoder_decoder"),
}


def test_every_committed_log_has_an_expected_diagnosis():
    assert {path.stem for path in LOGS.glob("*.log")} == set(EXPECTED)


@pytest.mark.parametrize(
    ("name", "fault", "words"), [(name, *expected) for name, expected in EXPECTED.items()], ids=list(EXPECTED)
)
def test_a_real_log_is_diagnosed_right(name, fault, words):
    diagnosis = diagnose((LOGS / f"{name}.log").read_text(encoding="utf-8"))
    assert diagnosis.known_fault == fault
    assert words in diagnosis.cause
    assert diagnosis.remedy and diagnosis.excerpt


def test_the_storys_triton_lines_are_in_its_log_and_never_its_cause():
    text = (LOGS / "v016_story.log").read_text(encoding="utf-8")
    assert text.count("Failed to import Triton kernels") == 2 and "SparseMatrix" in text
    diagnosis = diagnose(text)
    assert "Triton" not in diagnosis.cause + diagnosis.excerpt


def test_noise_alone_is_no_cause():
    noise = "\n".join(
        line
        for line in (LOGS / "v016_story.log").read_text(encoding="utf-8").splitlines()
        if NOISE.search(line)
    )
    diagnosis = diagnose(noise)
    assert diagnosis.known_fault is None
    assert diagnosis.cause.startswith("unknown: ")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "INFO 11-30 02:24:26 [a.py:1] all is well",
        "ERROR in batch 0-8: ",
        "\x00\xff",
        "Traceback (most recent call last):",
        "a\rb\rc",
    ],
)
def test_the_cause_is_never_empty(text):
    diagnosis = diagnose(text)
    assert diagnosis.cause.strip() and diagnosis.remedy.strip()


def test_a_cut_log_still_has_a_cause_at_every_length():
    text = (LOGS / "layer_given_twice.log").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert all(diagnose("\n".join(lines[:count])).cause for count in range(0, len(lines), 7))


CUTS = 40
"""Places, evenly spread, at which each log is cut: all three thousand lines would take minutes."""


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_of_a_log_cut_anywhere_the_cause_is_never_the_head_or_a_frame_of_a_traceback(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    starts = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    places = {
        *range(0, len(lines), max(1, len(lines) // CUTS)),
        *(number + after for number in starts[:8] for after in (1, 2, 3)),
    }
    for place in sorted(places):
        for part in (lines[:place], lines[place:]):
            cause = diagnose("\n".join(part)).cause
            assert cause.strip() and "Traceback (most recent call last)" not in cause, (
                f"cut at line {place}: {cause}"
            )
            assert not cause.lstrip("`").startswith(('File "', "^")), f"cut at line {place}: {cause}"


def test_a_traceback_that_is_cut_off_is_known_by_its_deepest_frame():
    lines = [
        "Traceback (most recent call last):",
        '  File "/opt/a.py", line 3, in run',
        "    go()",
        '  File "/opt/b.py", line 7, in go',
        "    deeper()",
    ]
    worker = "\n".join(f"(Worker pid=7) ERROR 11-30 02:00:00 [w.py:1] {line}" for line in lines)
    diagnosis = diagnose(worker)
    assert diagnosis.known_fault is None
    assert (
        "cut off" in diagnosis.cause
        and "/opt/b.py:7 in go" in diagnosis.cause
        and "`deeper()`" in diagnosis.cause
        and "Worker pid=7" in diagnosis.cause
    )
    assert "/opt/a.py" in diagnosis.excerpt
    assert "cut off" in diagnose(worker.splitlines()[0]).cause


def test_a_traceback_whose_head_is_cut_off_still_has_its_exception():
    worker = "\n".join(
        f"(Worker pid=7) ERROR 11-30 02:00:00 [w.py:1] {line}"
        for line in TRACEBACK.format(words="OSError: the disk broke").splitlines()[2:]
    )
    assert diagnose(worker).cause.startswith("the disk broke") or diagnose(worker).cause.startswith(
        "OSError: the disk broke"
    )
    frames = "\n".join(
        f"(Worker pid=7) ERROR 11-30 02:00:00 [w.py:1] {line}"
        for line in TRACEBACK.format(words="OSError: the disk broke").splitlines()[1:]
    )
    assert (
        diagnose(frames).cause
        == "OSError: the disk broke (at /opt/venv/lib/a.py:3 in run, process Worker pid=7)"
    )


def test_an_exception_class_made_inside_a_function_is_read_like_any_other():
    assert (
        diagnose(TRACEBACK.format(words="x.main.<locals>.MyError: words")).cause
        == "MyError: words (at /opt/venv/lib/a.py:3 in run)"
    )


GROUP = """  + Exception Group Traceback (most recent call last):
  |   File "/opt/a.py", line 3, in <module>
  |     asyncio.run(main())
  | ExceptionGroup: unhandled errors in a TaskGroup (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/opt/b.py", line 5, in worker
    |     raise ValueError("real cause")
    | ValueError: real cause
    +---------------- 2 ----------------
    | Exception Group Traceback (most recent call last):
    |   File "/opt/c.py", line 6, in other
    |     raise ExceptionGroup("inner", [KeyError("x")])
    | ExceptionGroup: inner (1 sub-exception)
    +-+---------------- 1 ----------------
      | KeyError: 'x'
      +------------------------------------
"""


def test_the_cause_of_an_exception_group_is_the_first_exception_in_it():
    assert diagnose(GROUP).cause == "ValueError: real cause (at /opt/b.py:5 in worker)"
    cut = diagnose("\n".join(GROUP.splitlines()[:4]))
    assert "2 sub-exceptions" in cut.cause and cut.known_fault is None


def test_what_a_warning_goes_on_to_say_is_no_cause():
    handled = "WARNING 11-30 02:00:00 [a.py:1] an attempt failed:\nwill try again\n"
    assert diagnose(handled + "ERROR 11-30 02:00:01 [a.py:1] the disk broke\n").cause.startswith(
        "the disk broke"
    )
    assert "will try again" not in diagnose(handled + "(Worker pid=7) EngineDeadError: gone\n").cause


@pytest.mark.parametrize("head", ["Error executing job: ", "ERROR in batch 0-8: "])
def test_a_message_that_goes_on_in_the_next_line_is_not_empty(head):
    diagnosis = diagnose(f"INFO 11-30 02:00:00 [a.py:1] working\n{head}\nValueError: real cause\n")
    assert diagnosis.known_fault is None and "ValueError: real cause" in diagnosis.cause
    for after in ("", "\n\nbye", "\nERROR in batch 8-16: ", "\nINFO 11-30 02:00:00 [a.py:1] next"):
        assert diagnose(f"{head}{after}").known_fault == "empty-message", repr(after)


TRACEBACK = """Traceback (most recent call last):
  File "/opt/venv/lib/a.py", line 3, in run
    go()
    ^^^^
{words}
"""


def test_an_unknown_exception_is_named_and_said_to_be_unknown():
    diagnosis = diagnose(TRACEBACK.format(words="BananaError: too ripe"))
    assert diagnosis.known_fault is None
    assert diagnosis.cause == "BananaError: too ripe (at /opt/venv/lib/a.py:3 in run)"
    assert "no known fault" in diagnosis.remedy


def test_of_interleaved_workers_the_first_to_fail_is_the_cause():
    first = [
        f"(Worker_TP1 pid=2) ERROR 11-30 02:00:00 [w.py:1] {line}"
        for line in TRACEBACK.format(words="ValueError: the first").splitlines()
    ]
    second = [
        f"(Worker_TP0 pid=1) ERROR 11-30 02:00:00 [w.py:1] {line}"
        for line in TRACEBACK.format(words="ValueError: the second").splitlines()
    ]
    mixed = [first[0], *(line for pair in zip(second, first[1:], strict=False) for line in pair)]
    assert diagnose("\n".join(mixed)).cause.startswith("ValueError: the first")


def test_an_explicit_cause_is_deeper_than_what_was_raised_from_it():
    text = TRACEBACK.format(words="OSError: the disk broke") + (
        "\nThe above exception was the direct cause of the following exception:\n\n"
        + TRACEBACK.format(words="RuntimeError: could not load")
    )
    assert diagnose(text).cause.startswith("OSError: the disk broke")


def test_what_was_raised_while_handling_another_is_the_cause_unless_it_only_passes_it_on():
    handling = "\nDuring handling of the above exception, another exception occurred:\n\n"
    lookup = TRACEBACK.format(words="KeyError: 'not cached'")
    assert diagnose(
        lookup + handling + TRACEBACK.format(words="OSError: cannot load it either")
    ).cause.startswith("OSError: cannot load it either")
    passed_on = TRACEBACK.format(
        words="RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    )
    assert diagnose(lookup + handling + passed_on).cause.startswith("KeyError: 'not cached'")


def test_an_exception_logged_as_a_warning_was_handled():
    handled = "\n".join(
        f"WARNING 11-30 02:00:00 [b.py:1] {line}"
        for line in TRACEBACK.format(words="ValueError: never mind").splitlines()
    )
    assert diagnose(handled + "\n" + TRACEBACK.format(words="BananaError: too ripe")).cause.startswith(
        "BananaError"
    )


@pytest.mark.parametrize(
    ("quoted", "fault"),
    [("", "empty-message"), ("No space left on device", "disk-full"), ("something else", None)],
)
def test_a_workers_error_known_only_as_quoted_is_taken_from_the_quote(quoted, fault):
    words = (
        f"RuntimeError: Worker failed with error '{quoted}', please check the stack trace above for the root"
        " cause"
    )
    diagnosis = diagnose(TRACEBACK.format(words=words))
    assert diagnosis.known_fault == fault
    assert "worker failed" in diagnosis.cause.lower() and quoted in diagnosis.cause


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T02:00:00 DUE TO TIME LIMIT ***",
            "time-limit",
        ),
        (
            "slurmstepd: error: *** JOB 12 ON n1 CANCELLED AT 2026-11-30T02:00:00 DUE TO PREEMPTION ***",
            "preempted",
        ),
        (
            (
                "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks have"
                " been OOM Killed."
            ),
            "killed-for-memory",
        ),
        ("Fatal Python error: Segmentation fault", "native-crash"),
        (
            (
                "terminate called after throwing an instance of 'std::bad_function_call'\n  what(): "
                " bad_function_call"
            ),
            "native-crash",
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "device-fault"),
        ("torch.AcceleratorError: CUDA error: unspecified launch failure", "device-fault"),
        (
            (
                "terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an"
                " illegal memory access was encountered"
            ),
            "device-fault",
        ),
        (
            (
                "[rank1]:[E1130 02:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective"
                " operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600000 milliseconds before"
                " timing out."
            ),
            "collective-timeout",
        ),
        ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "no-device"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "device-memory-short"),
        ("RuntimeError: CUDA error: out of memory", "device-memory-short"),
    ],
)
def test_faults_that_leave_no_python_traceback_of_their_own(line, fault):
    text = TRACEBACK.format(words=line) if re.match(r"[\w.]+Error: ", line) else line
    assert diagnose(f"INFO 11-30 02:00:00 [a.py:1] working\n{text}\n").known_fault == fault


def test_the_time_limit_wins_over_the_end_it_brings():
    text = "slurmstepd: error: *** JOB 12 ON n1 CANCELLED DUE TO TIME LIMIT ***\n" + TRACEBACK.format(
        words="vllm.v1.engine.exceptions.EngineDeadError: gone"
    )
    assert diagnose(text).known_fault == "time-limit"


def test_prefixes_of_processes_records_ranks_and_colours_are_taken_off():
    (line,) = parse_lines(
        "\x1b[36m(EngineCore pid=7)\x1b[0m (Worker_TP0 pid=9) ERROR 11-30 02:15:36 [core.py:1512]   File x"
    )
    assert (line.process, line.level, line.origin, line.text) == (
        "Worker_TP0 pid=9",
        "ERROR",
        "core.py:1512",
        "  File x",
    )
    assert (
        parse_lines("[rank0]: Traceback (most recent call last):")[0].text
        == "Traceback (most recent call last):"
    )
    assert parse_lines("ERROR in batch 0-8: ")[0].level == "ERROR"


def test_the_catalogue_has_no_id_twice_and_each_says_what_to_do():
    assert len({fault.id for fault in FAULTS}) == len(FAULTS)
    assert all(fault.meaning and fault.remedy for fault in FAULTS)


MADE = [part.split("\n", 1) for part in (LOGS / "made.txt").read_text(encoding="utf-8").split("\n### ")[1:]]


@pytest.mark.parametrize(("title", "text"), MADE, ids=[title for title, _ in MADE])
def test_a_made_log_is_diagnosed_right(title, text):
    fault, words = title.split(" | ")
    diagnosis = diagnose(text)
    assert (diagnosis.known_fault, words in diagnosis.cause) == (fault, True), diagnosis.cause


PREFIXES = {
    "journald": "Nov 30 02:00:00 n1 vllm[812]: ",
    "journald, ISO": "2026-11-30T02:00:00+0100 n1 python3[812]: ",
    "srun --label": "3: ",
    "docker compose": "vllm-1  | ",
    "kubectl --prefix": "[pod/vllm-7c9/engine] ",
    "kubectl --timestamps": "2026-11-30T02:00:00.123456789Z ",
    "kubectl, both": "[pod/vllm-7c9/engine] 2026-11-30T02:00:00.123456789Z ",
    "mpirun": "[1,0]<stderr>: ",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("name", ["disk_full", "layer_given_twice", "unknown_method_key", "v016_story"])
def test_what_another_program_puts_before_each_line_changes_nothing(prefix, name):
    text = (LOGS / f"{name}.log").read_text(encoding="utf-8")
    labelled = "\n".join((prefix + line).rstrip() for line in text.splitlines())
    plain, found = diagnose(text), diagnose(labelled)
    assert (found.known_fault, found.cause) == (plain.known_fault, plain.cause)


def test_the_sources_of_labelled_lines_are_kept_apart():
    first = TRACEBACK.format(words="ValueError: the first").splitlines()
    second = TRACEBACK.format(words="ValueError: the second").splitlines()
    mixed = [f"{rank}: {line}" for pair in zip(first, second, strict=True) for rank, line in enumerate(pair)]
    diagnosis = diagnose("\n".join(mixed))
    assert diagnosis.cause == "ValueError: the first (at /opt/venv/lib/a.py:3 in run, process 0)"


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-30 02:00:00,123 - worker - ERROR - the disk broke",
        "2026-11-30 02:00:00 ERROR the disk broke",
        "[2026-11-30 02:00:00,123] [ERROR] the disk broke",
        "2026-11-30T02:00:00.5 ERROR: the disk broke",
        "ERROR 04-26 01:59:07 worker_base.py:157] the disk broke",
    ],
)
def test_records_of_other_loggers_are_errors_too(line):
    text = f"working\n{line}\n"
    assert diagnose(text).cause == "the disk broke"


def test_pydantics_message_is_whole_and_without_what_was_given():
    lines = [
        "1 validation error for ModelConfig",
        "  Value error, The checkpoint you are trying to load has model type `new_type`",
        "but Transformers does not recognize this architecture.",
        "",
        "You can update Transformers with the command `pip install -U transformers`."
        f" [type=value_error, input_value=ArgsKwargs({'x' * 900}), input_type=ArgsKwargs]",
        "    For further information visit https://errors.pydantic.dev/2/v/value_error",
    ]
    cause = diagnose(
        TRACEBACK.format(words="pydantic_core._pydantic_core.ValidationError: " + "\n".join(lines))
    ).cause
    assert "does not recognize this architecture" in cause and "pip install -U transformers" in cause
    assert "xxx" not in cause and "further information" not in cause


def test_a_reader_that_leaves_early_ends_the_program_without_a_word():
    log = LOGS / "disk_full.log"
    command = [sys.executable, str(SCRIPT), *[str(log)] * 400]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        program.stdout.readline()
        program.stdout.close()
        assert program.stderr.read() == b""


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False
    )


def test_the_script_prints_a_diagnosis_a_log():
    logs = [LOGS / "v016_story.log", LOGS / "disk_full.log"]
    shown = run(*logs).stdout
    assert "known: missing-argument" in shown and "known: disk-full" in shown and "do:    free space" in shown
    records = [json.loads(line) for line in run("--json", *logs).stdout.splitlines()]
    assert [record["known_fault"] for record in records] == ["missing-argument", "disk-full"]


def test_a_compressed_log_is_read_like_any_other_whatever_its_name_and_also_if_it_is_cut(tmp_path):
    packed = gzip.compress((LOGS / "disk_full.log").read_bytes())
    for name, content in (("whole.log.gz", packed), ("named.log", packed), ("torn.gz", packed[:-20])):
        (tmp_path / name).write_bytes(content)
        assert "known: disk-full" in run(tmp_path / name).stdout, name
    (tmp_path / "no.gz").write_bytes(packed[:12] + bytes([255]) * 50)
    done = run(tmp_path / "no.gz")
    assert done.returncode == 1 and "no.gz cannot be read" in done.stderr and "Traceback" not in done.stderr


def test_the_script_says_which_file_it_cannot_read(tmp_path):
    done = run(tmp_path / "nowhere.log")
    assert done.returncode == 1 and "nowhere.log cannot be read" in done.stderr


FOREIGN = """
import sys
before = set(sys.modules)
import eagle3_data.diagnosis
print({name.split('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
"""


def test_diagnosis_imports_the_standard_library_only():
    done = subprocess.run(
        [sys.executable, "-c", FOREIGN],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SCRIPT.parent)},
    )
    assert done.stdout.strip() == "{'eagle3_data'}"
