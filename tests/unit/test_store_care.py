"""Care of the store: what is listed, every fault found, and nothing deleted that a run may need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import damages
from eagle3_data import PACKAGE_ROOT
from eagle3_data.extraction.store_care import fault_of, quarantine
from eagle3_data.hashing import sample_key
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.passes.lease import LeaseState, PassProgress
from eagle3_data.records import read_json, write_json
from eagle3_data.records.batch_index import BatchEntry, BatchIndex
from eagle3_data.records.checksum import file_checksum
from eagle3_data.store import Store
from eagle3_data.system.processes import this_process
from eagle3_data.target import TargetDescription

ROOT = Path(__file__).parents[2]
IDENTITY = ExtractionIdentity("f" * 32, (2, 4, 5, 8), "bfloat16", "none", "module:VllmEngine", {})
ID = IDENTITY.extraction_id
TOKENS = dict(sorted((sample_key([number] * 5), [number] * 5) for number in range(4)))
KEYS = list(TOKENS)


class Place:
    """A directory with results/store and results/<run>, and the script."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = Store(directory / "results/store", ID)
        write_json(self.store.directory / "identity.json", asdict(IDENTITY))
        for key in KEYS:
            self.commit(key)

    def commit(self, key: str) -> None:
        part = self.store.directory / "part"
        part.write_bytes(bytes.fromhex(key) * 10)
        facts = {"size_bytes": 160, "xxh3_128": file_checksum(part), "tokens": 5, "greedy_token": 1}
        self.store.commit(key, part, facts)

    def record(self, run: str, keys: list[str], extraction_id: str = ID) -> None:
        samples = [{"sample_id": key, "key": key} for key in keys]
        facts = {"pass": "001", "stripe": 0, "extraction_id": extraction_id}
        write_json(
            self.directory / f"results/{run}/extraction/records/00000.json",
            {**facts, "batch": "00000", "fingerprint": "f", "samples": samples, "left_out": []},
        )

    def tokens(self, run: str, keys: list[str]) -> None:
        path = self.directory / f"results/{run}/tokens/samples.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"sample_id": keys, "key": keys}), path)

    def ledger(self, run: str, number: str, extraction_id: str = ID) -> None:
        write_json(
            self.directory / f"results/{run}/extraction/passes/{number}/0.json",
            {"pass": number, "stripe": 0, "extraction_id": extraction_id, "batches": {}},
        )

    def running(self, run: str, age_s: float = 0, extraction_id: str = ID) -> None:
        path = self.directory / f"results/{run}/extraction/running/0-of-1.json"
        facts = PassProgress(
            number="001",
            stripe=0,
            extraction_id=extraction_id,
            phase="extracting",
            started_at=0,
            updated_at=0,
        )
        another = replace(this_process(), kernel="another machine's")
        LeaseState(**vars(another), **vars(facts), token="t", beat=1).write(path)
        make_old(path, age_s)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(ROOT / "scripts/store.py"), *arguments],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )

    def garbage(self, *arguments: str) -> set[str]:
        """Names of what gc lists, each with its reason."""
        done = self.call("gc", *arguments)
        assert done.returncode == 0, done.stderr
        return {line.rpartition("/")[2] for line in done.stdout.splitlines()}


def make_old(path: Path, age_s: float) -> None:
    os.utime(path, (time.time() - age_s,) * 2)


def unneeded(*keys: str) -> set[str]:
    return {f"{key}.safetensors: no run refers to it" for key in keys}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_list_says_what_an_extraction_id_is_and_holds(place):
    place.store.quarantine(KEYS[0], "all-zero")
    place.store.states_path(KEYS[1]).unlink()
    header, row = place.call("list", "--tokens").stdout.splitlines()
    assert header.split("  ")[0] == "extraction id"
    assert row.split() == [
        ID,
        "ffffffff",
        "2",
        "4",
        "5",
        "8",
        "bfloat16",
        "VllmEngine",
        "2",
        "10",
        "0.000",
        "1",
        "1",
    ]


def test_a_whole_store_is_verified_silently(place):
    done = place.call("verify")
    assert (done.returncode, done.stdout) == (0, "")
    assert "4/4 samples" in done.stderr


def test_verify_names_every_bad_sample_and_its_fault(place):
    flipped, cut, garbled = (place.store.states_path(key) for key in KEYS[:3])
    flipped.write_bytes(flipped.read_bytes()[:-1] + b"x")
    cut.write_bytes(cut.read_bytes()[:-1])
    place.store.sidecar_path(KEYS[2]).write_text("{")
    done = place.call("verify")
    assert done.returncode == 1
    faults = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert faults[str(flipped.relative_to(place.directory))].startswith("checksum ")
    assert faults[str(cut.relative_to(place.directory))] == "159 bytes, 160 were written"
    assert "cannot be read as a JSON record" in faults[str(garbled.relative_to(place.directory))]
    assert "3 damaged samples in results/store" in done.stderr


def test_verify_can_take_bad_samples_out_of_the_store(place):
    place.store.states_path(KEYS[0]).write_bytes(b"")
    assert place.call("verify", "--quarantine").returncode == 1
    assert not place.store.holds(KEYS[0])
    assert place.call("verify").returncode == 0


def test_an_unknown_extraction_id_and_an_absent_store_are_named(place):
    assert f"known here: {ID}" in place.call("verify", "--extraction-id", "x").stderr
    done = place.call("list", "--store", "nowhere")
    assert (done.returncode, "there is no store nowhere" in done.stderr) == (1, True)


def test_finished_batches_keep_their_samples(place):
    place.record("a", KEYS[:2])
    place.record("b", KEYS[1:3])
    assert place.garbage() == unneeded(KEYS[3])
    assert place.store.keys() == set(KEYS), "it was only listed"


def test_records_of_another_extraction_id_keep_nothing(place):
    place.record("a", KEYS, extraction_id="other")
    assert place.garbage() == unneeded(*KEYS)


def test_the_newest_pass_keeps_all_samples_of_its_run(place):
    place.tokens("a", KEYS[:3])
    place.ledger("a", "001", "other")
    place.ledger("a", "002")
    assert place.garbage() == unneeded(KEYS[3])


def test_an_older_pass_with_other_settings_keeps_nothing(place):
    place.tokens("a", KEYS)
    place.ledger("a", "009")
    place.ledger("a", "010", "other")
    assert place.garbage() == unneeded(*KEYS)


def test_a_running_pass_keeps_its_samples_and_forbids_deletion(place):
    place.tokens("a", KEYS[:3])
    place.running("a")
    assert place.garbage() == unneeded(KEYS[3])
    done = place.call("gc", "--delete")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"a pass of results/a is extracting {ID}" in done.stderr
    assert place.store.keys() == set(KEYS)


def test_a_pass_that_was_killed_or_extracts_something_else_forbids_nothing(place):
    place.tokens("a", KEYS[:3])
    place.running("a", age_s=130)
    place.record("b", [])
    place.running("b", extraction_id="other")
    place.tokens("b", [])
    place.garbage("--delete")
    assert place.store.keys() == set(KEYS[:3])


def test_deletion_leaves_nothing_of_a_sample_and_all_of_the_others(place):
    place.record("a", KEYS[:3])
    place.garbage("--delete")
    assert place.store.keys() == set(KEYS[:3])
    assert list(place.store.directory.glob(f"*/{KEYS[3]}*")) == []
    assert place.call("verify").returncode == 0
    assert place.garbage() == set()


def test_leftovers_go_once_no_writer_can_be_at_work(place):
    place.record("a", KEYS)
    for key in KEYS[:2]:
        place.store.states_path(key).unlink()
    place.store.sidecar_path(KEYS[2]).unlink()
    part = place.store.sidecar_path(KEYS[0]).with_name(f".{KEYS[0]}.json.7.part")
    part.touch()
    old, young = (place.store.directory / "incoming" / name for name in ("old", "young"))
    for directory in (old, young):
        directory.mkdir(parents=True)
        (directory / "states.part").touch()
    living = place.store.open_incoming("living", this_process()) / "owner.json"
    killed = place.store.open_incoming("killed", replace(this_process(), pid_started="1"))
    assert place.garbage("--delete") == {"killed: left behind by a writer"}, (
        "a process that is gone is gone at once"
    )
    assert not killed.exists()
    for path in (
        place.store.sidecar_path(KEYS[0]),
        place.store.states_path(KEYS[2]),
        part,
        old,
        old / "states.part",
        young,
        living,
        living.parent,
    ):
        make_old(path, 1000)
    assert place.store.now() - living.stat().st_mtime > 900, "its own process tells that it lives"
    expected = {
        f"{KEYS[0]}.json: sidecar without states",
        f"{KEYS[2]}.safetensors: states without a sidecar",
        f"{part.name}: unfinished record",
        "old: left behind by a writer",
    }
    assert place.garbage("--delete") == expected
    assert not old.exists() and young.exists() and living.exists()
    assert place.store.keys() == {KEYS[3]}


def test_quarantined_samples_are_kept_for_some_days(place):
    place.record("a", KEYS)
    place.store.quarantine(KEYS[0], "all-zero")
    (reason,) = place.store.directory.glob("quarantine/*.reason.json")
    make_old(reason, 8 * 86400)
    assert place.garbage("--quarantine-days", "9") == set()
    (listed,) = place.garbage("--delete")
    assert listed.endswith("quarantined more than 7 days ago")
    assert list(reason.parent.iterdir()) == []


@pytest.mark.parametrize("damage", ["record", "ledger", "tokens"])
def test_nothing_is_deleted_where_a_run_cannot_tell_what_it_needs(place, damage):
    place.record("a", KEYS)
    place.ledger("a", "001")
    if damage != "tokens":
        place.tokens("a", KEYS)
        name = {"record": "records/00000.json", "ledger": "passes/001/0.json"}[damage]
        (place.directory / "results/a/extraction" / name).write_text("{")
    done = place.call("gc", "--delete")
    assert (done.returncode, done.stdout) == (1, "")
    assert "results/a" in done.stderr
    assert place.store.keys() == set(KEYS)


def test_a_directory_without_runs_is_taken_for_a_mistake(place):
    done = place.call("gc", "--delete")
    assert done.returncode == 1
    assert "results holds no extracted run" in done.stderr


def test_several_directories_of_runs_may_share_a_store(place):
    place.record("a", KEYS[:2])
    place.record("../elsewhere/b", KEYS[2:])
    assert place.garbage("--results", "results", "elsewhere") == set()


# ---- runs that start while samples are deleted


GC_THAT_WAITS = """
import runpy, sys
from eagle3_data.extraction import store_care
delete = store_care.Garbage.delete
def delete_when_told(garbage):
    print("deleting", flush=True)
    sys.stdin.readline()
    delete(garbage)
store_care.Garbage.delete = delete_when_told
sys.argv = ["store.py", "gc", "--delete"]
runpy.run_path(SCRIPT, run_name="__main__")
"""


class Planned(Place):
    """A place with a run b that is tokenized: two batches of two samples, all of them in the store already.
    Run a, which was extracted with other settings, needs nothing."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.record("a", [], "other")
        run = directory / "results/b"
        target = TargetDescription(
            path="model",
            architecture="LlamaForCausalLM",
            text_architecture="LlamaForCausalLM",
            model_type="llama",
            num_hidden_layers=8,
            hidden_size=4,
            vocab_size=100,
            max_position_embeddings=100,
            quantization=IDENTITY.quantization,
            weights_bytes=1,
            needs_remote_code=False,
            fingerprint=IDENTITY.fingerprint,
        )
        target.write(run / "target.json")
        batches = {f"0000{n}": BatchEntry(n, 2, 10, f"batch {n}") for n in (0, 1)}
        BatchIndex(batches, samples=4, tokens=20).write(run / "tokens/batches.json")
        ids = pa.array(TOKENS.values(), pa.list_(pa.int32()))
        table = pa.table({"sample_id": KEYS, "key": KEYS, "input_ids": ids})
        pq.write_table(table, run / "tokens/samples.parquet", row_group_size=2)

    @property
    def ledger_path(self) -> Path:
        return self.directory / "results/b/extraction/passes/001/stored.json"

    def find_stored(self) -> subprocess.Popen[str]:
        """What a run calls that finds its batches in the store."""
        config = self.directory / "config.json"
        config.write_text(json.dumps({"extraction": {"engine": IDENTITY.engine}}))
        options = {
            "--config": str(config),
            "--results": "results/b",
            "--pass-number": "001",
            "--ledger": str(self.ledger_path),
        }
        return self.start(
            str(ROOT / "scripts/find_stored_batches.py"),
            *(part for option in options.items() for part in option),
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        environment = {**os.environ, "PYTHONPATH": PACKAGE_ROOT}
        return subprocess.Popen(
            [sys.executable, *arguments], cwd=self.directory, env=environment, text=True, **pipes
        )

    def stored_batches(self) -> list[str]:
        return sorted(json.loads(self.ledger_path.read_text())["batches"])


@pytest.fixture
def planned(tmp_path: Path) -> Planned:
    return Planned(tmp_path)


def test_a_run_that_starts_during_a_deletion_waits_and_counts_on_nothing_that_is_gone(planned):
    script = str(ROOT / "scripts/store.py")
    with planned.start("-c", GC_THAT_WAITS.replace("SCRIPT", repr(script))) as deleting:
        assert deleting.stdout.readline().endswith("no run refers to it\n")
        assert deleting.stdout.readline() == "deleting\n"  # of four samples; everything is still there
        with planned.find_stored() as run:
            assert "waiting until it ends" in run.stderr.readline()
            assert not planned.ledger_path.exists()
            deleting.communicate("\n" * len(KEYS))
            run.communicate()
    assert (deleting.returncode, run.returncode) == (0, 0)
    assert planned.store.keys() == set()
    assert planned.stored_batches() == []


def test_what_a_run_has_found_before_a_deletion_stays(planned):
    with planned.find_stored() as run:
        errors = run.communicate()[1]
    assert run.returncode == 0, errors
    assert planned.stored_batches() == ["00000", "00001"]
    planned.garbage("--delete")
    assert planned.store.keys() == set(KEYS)


def test_nothing_is_deleted_while_a_run_relies_on_the_store(planned):
    planned.store.open_incoming("writer", this_process())
    with planned.store.in_use(), planned.store.in_use():  # several may
        done = planned.call("gc", "--delete")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"is in use by process {os.getpid()} on" in done.stderr
    assert planned.store.keys() == set(KEYS)
    planned.garbage("--delete")
    assert planned.store.keys() == set()


def test_a_pass_that_is_stopped_does_not_wait_for_a_deletion(planned):
    stop = threading.Event()
    stop.set()
    with planned.store.without_users(), planned.store.in_use(stop):
        pass


# ---- what is no file, and what cannot be read


@pytest.mark.parametrize("name", ["states_path", "sidecar_path"])
@pytest.mark.parametrize("kind", ["pipe", "directory"])
def test_what_is_no_file_is_named_and_can_be_taken_out(place, name, kind):
    path = getattr(place.store, name)(KEYS[0])
    path.unlink()
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    done = place.call("verify", "--quarantine")
    assert done.returncode == 1
    assert done.stdout.endswith(f"{path.name} is a {kind}, not a file\n")
    assert not place.store.holds(KEYS[0])
    assert place.call("verify").returncode == 0


@pytest.mark.parametrize(
    "sidecar", ["{}", "[]", "null", '{"format_version": 1, "key": 3}', "sizes", "missing", "\udcff"]
)
def test_a_damaged_sidecar_is_a_fault_of_its_sample(place, sidecar):
    path = place.store.sidecar_path(KEYS[0])
    if sidecar == "sizes":
        write_json(path, {**read_json(path), "size_bytes": "160"})
    elif sidecar == "missing":
        write_json(path, {key: value for key, value in read_json(path).items() if key != "xxh3_128"})
    else:
        path.write_bytes(os.fsencode(sidecar))
    done = place.call("verify")
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)
    assert "Traceback" not in done.stderr


SAMPLES = [
    *((".json", kind) for kind in damages.SIDECAR),
    *((".safetensors", kind) for kind in damages.STATES),
]


@pytest.mark.parametrize(("suffix", "kind"), SAMPLES)
def test_every_kind_of_damage_to_a_sample_is_a_fault_that_can_be_taken_out(place, suffix, kind):
    path = place.store.states_path(KEYS[0]).with_suffix(suffix)
    (damages.SIDECAR if suffix == ".json" else damages.STATES)[kind](path)
    fault = fault_of(place.store, KEYS[0])
    if kind == "greedy beyond":  # only validation knows the vocabulary
        assert fault is None
        return
    assert fault.is_damage and "\n" not in fault.text
    quarantine(place.store, fault)
    assert not any(os.path.lexists(path.with_suffix(half)) for half in (".json", ".safetensors"))


def test_a_sample_that_was_replaced_since_is_not_taken_out(place):
    place.store.states_path(KEYS[0]).write_bytes(b"damaged")
    fault = fault_of(place.store, KEYS[0])
    place.store.states_path(KEYS[0]).unlink()
    place.commit(KEYS[0])
    quarantine(place.store, fault)
    assert place.store.holds(KEYS[0])


@pytest.mark.parametrize("command", ["list", "verify", "gc"])
def test_a_file_in_place_of_a_shelf_is_named(place, command):
    (place.store.directory / "zz").write_text("")
    place.record("a", KEYS)
    done = place.call(command)
    assert done.returncode == 1
    assert "zz is a file where a directory is needed; move it away" in done.stderr
    assert "Traceback" not in done.stderr
