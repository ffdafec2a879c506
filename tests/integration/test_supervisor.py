"""The pass's own process under signals: the ledger is written, what is finished is kept, no engine outlives
its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil
import pytest

from eagle3_data.records import read_json, write_json
from eagle3_data.records.checksum import file_checksum
from eagle3_data.store import ABANDONED_S
from eagle3_data.store.states import open_states
from integration.fixtures import fast_config
from integration.workflow import PATIENCE_S, Workflow, conversation, wait_for, write_jsonl

pytestmark = pytest.mark.slow

RUNS_AT_RANDOM = 8
HALF = 3
"""Samples that a pass has committed when it is stopped, of ten in five batches."""


def engines_of(supervisor: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return psutil.Process(supervisor.pid).children(recursive=True)


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if lives(process)]


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # gone between the two questions
        return False


def half_done(workflow: Workflow) -> subprocess.Popen[bytes]:
    """A pass that has committed its first batch and a sample of the second, and whose engine is held before
    the next one."""
    workflow.hold_all_but(HALF)
    supervisor = workflow.start_pass()
    wait_for(lambda: len(workflow.stored()) >= HALF)
    return supervisor


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_pass_writes_its_ledger_and_keeps_what_is_finished(
    fast: Workflow, signal_number: int
) -> None:
    supervisor = half_done(fast)
    engines = engines_of(supervisor)
    supervisor.send_signal(signal_number)
    assert supervisor.wait(PATIENCE_S) == 0
    assert engines and not living(engines)
    record = json.loads(fast.ledger("001").read_text())
    assert record["failure"]["message"] == f"the pass was stopped by {signal.Signals(signal_number).name}"
    states = [outcome["state"] for outcome in record["batches"].values()]
    assert "complete" in states
    assert "not_reached" in states
    assert "failed" not in states
    assert not list(fast.directory.glob("results/store/*/incoming/*/*"))
    assert len(fast.stored()) == HALF
    assert not list(fast.results.glob("extraction/running/*-of-*.json"))


def test_no_engine_outlives_a_killed_supervisor_and_its_leftovers_are_cleaned(fast: Workflow) -> None:
    supervisor = half_done(fast)
    engines = engines_of(supervisor)
    os.kill(supervisor.pid, signal.SIGKILL)
    supervisor.wait()
    assert engines
    wait_for(lambda: not living(engines))
    assert list(fast.directory.glob("results/store/*/incoming/*"))
    assert list(fast.results.glob("extraction/running/*-of-*.json"))
    fast.faults = {}
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert sum(ledger["samples_extracted"] for ledger in run.passes.values()) == 10 - HALF
    assert len(fast.stored()) == 10
    assert not list(fast.directory.glob("results/store/*/incoming/*"))
    assert not list(fast.results.glob("extraction/running/*-of-*.json")), (
        "a kill during a beat leaves the part of a file, which is no lease"
    )
    assert fast.run("extract").nothing_done


def test_a_second_pass_waits_for_the_first_and_finds_the_work_done(fast: Workflow) -> None:
    first = half_done(fast)
    second = fast.start_pass("002")
    wait_for(lambda: "another pass is extracting this run" in (fast.directory / "pass.log").read_text())
    fast.set_faults({})
    assert first.wait(PATIENCE_S) == second.wait(PATIENCE_S) == 0
    ledgers = [json.loads(fast.ledger(number).read_text()) for number in ("001", "002")]
    assert [ledger["samples_extracted"] for ledger in ledgers] == [10, 0]
    assert [ledger["model_loads"] for ledger in ledgers] == [1, 0]
    assert ledgers[0]["lease_wait_s"] < ledgers[1]["lease_wait_s"] < ledgers[1]["elapsed_s"]


def test_a_pass_whose_lease_another_took_while_it_stood_still_stops(fast: Workflow) -> None:
    """The other's lease lies there, as it does when the first one was frozen for over a minute."""
    first = half_done(fast)
    (lease,) = fast.results.glob("extraction/running/*-of-*.json")

    def has_ended_beside_another() -> bool:
        write_json(lease, {**read_json(lease), "token": "another's"})
        return first.poll() is not None

    wait_for(has_ended_beside_another)
    assert first.returncode == 0
    assert (
        "the pass stalled and lost its lease to another"
        in json.loads(fast.ledger("001").read_text())["failure"]["message"]
    )
    assert read_json(lease)["token"] == "another's", "it removes its own lease only"
    fast.faults = {}
    last = fast.run_pass("002")
    assert {outcome["state"] for outcome in last["batches"].values()} == {"complete"}


def test_what_a_writer_of_another_machine_left_goes_when_it_is_old_and_what_a_living_one_writes_stays(
    fast: Workflow,
) -> None:
    another = fast.copy(fast.directory.with_name("another"))
    another.config["extraction"]["store"] = str(fast.directory / "results/store")
    fast.faults = {"hold_start": True}
    loading = fast.start_pass()
    wait_for(lambda: list(fast.directory.glob("results/store/*/incoming/*/owner.json")))
    (owner,) = fast.directory.glob("results/store/*/incoming/*/owner.json")
    write_json(owner, {**read_json(owner), "kernel": "another machine's"})
    dead = owner.parent.with_name("dead")
    shutil.copytree(owner.parent, dead)
    (dead / "states.safetensors.part").write_bytes(b"half")
    for path in (owner, owner.parent, dead / "owner.json", dead / "states.safetensors.part", dead):
        os.utime(path, (time.time() - ABANDONED_S - 5,) * 2)
    wait_for(lambda: time.time() - owner.stat().st_mtime < 60)  # a beat, while the engine loads
    sharing = another.start_pass()
    wait_for(lambda: not dead.exists())
    assert owner.exists()
    fast.set_faults({})
    assert (loading.wait(PATIENCE_S), sharing.wait(PATIENCE_S)) == (0, 0)
    assert len(fast.stored()) == 10
    another.end()


def test_a_pass_stops_before_the_walltime_ends_and_a_later_one_goes_on(
    fast: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast.config["extraction"]["stop_before_end_s"] = 60
    fast.config["tokenization"]["max_length"] = fast.config["extraction"]["in_flight_tokens"] = (
        64  # one sample at a time
    )
    fast.hold_all_but(HALF)

    def stops() -> bool:
        return "stopping: the job's walltime ends in" in (fast.directory / "pass.log").read_text()

    for walltime_s in (75, 120, 210):  # the shortest in which this machine extracts so many samples
        monkeypatch.setenv("SLURM_JOB_END_TIME", str(time.time() + walltime_s))
        before = len(fast.stored())
        supervisor = fast.start_pass()
        wait_for(lambda: len(fast.stored()) >= HALF or stops())
        if not stops():
            break
        supervisor.kill()
        supervisor.wait()
        (fast.directory / "pass.log").unlink()
    wait_for(stops)
    fast.set_faults({})
    assert supervisor.wait(PATIENCE_S) == 0
    ledger = json.loads(fast.ledger("001").read_text())
    assert "walltime ends in" in ledger["failure"]["message"]
    assert before + ledger["samples_extracted"] == HALF + 1, "the engine finishes the sample it has"
    assert "failed" not in {outcome["state"] for outcome in ledger["batches"].values()}
    assert len(ledger["replay"]["samples"]) == ledger["samples_extracted"]
    assert ledger["replay"]["unfinished"] == "", "there is time for it"
    monkeypatch.delenv("SLURM_JOB_END_TIME")
    fast.faults = {}
    assert fast.run_pass("002")["samples_extracted"] == 10 - HALF - 1


def test_status_shows_a_running_pass_while_snakemake_holds_its_lock_and_a_table_afterwards(
    fast: Workflow,
) -> None:
    poison = fast.keys("00001")[0]
    refuse = {"refuse": {poison: "refused for the test"}}
    fast.faults = {"hold": fast.all_keys()[2 * HALF :], **refuse}
    snakemake = fast.start("extract")
    wait_for(
        lambda: "extracting" in (told := fast.status()) and "samples, 1 failed" in told and " left" in told
    )
    fast.set_faults(refuse)
    snakemake.communicate(timeout=PATIENCE_S)
    fast.faults = {}
    table = fast.run("status")
    assert table.returncode == 0
    assert [line.split()[:2] for line in table.output.splitlines() if line.startswith("  00")] == [
        ["00001", "failed"]
    ]
    assert (
        "1 sample: SampleError: refused for the test (caused by ValueError: the innermost cause)"
        in table.output
    )
    assert table.output.count("4 of 5 batches extracted") == 1
    assert "running:" not in table.output
    assert " extract\n" in table.output.rpartition("rerun only what is missing:")[2], (
        "not the command that was called, which only looks"
    )
    assert fast.status("--all").count(" extracted ") == 4


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "ctrl-c"])
def test_a_signal_to_snakemakes_whole_group_loses_nothing(fast: Workflow, signal_number: int) -> None:
    fast.hold_all_but(HALF)
    snakemake = fast.start("extract")
    wait_for(lambda: len(fast.stored()) >= HALF)
    os.killpg(snakemake.pid, signal_number)
    output = snakemake.communicate(timeout=PATIENCE_S)[0]
    assert snakemake.returncode != 0
    assert json.loads(fast.ledger("001").read_text())["failure"], "the ledger of the stopped pass is written"
    assert len(fast.stored()) == HALF, output
    fast.faults = {}
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    assert sum(ledger["samples_extracted"] for ledger in run.passes.values()) == 10 - HALF


def test_after_a_kill_of_snakemake_the_same_command_starts_no_second_extraction(fast: Workflow) -> None:
    fast.faults = {"sleep_s": 1.0}
    snakemake = fast.start("extract")
    wait_for(lambda: len(fast.stored()) >= 1)
    snakemake.kill()
    snakemake.wait()
    locked = fast.run("extract")
    assert locked.returncode != 0
    assert "--unlock" in locked.output
    assert fast.run("--unlock").returncode == 0
    run = fast.run("extract")
    assert run.returncode == 0, run.output
    ledgers = [json.loads(path.read_text()) for path in fast.results.glob("extraction/passes/*/[0-9]*.json")]
    assert sum(ledger["samples_extracted"] for ledger in ledgers) == 10
    assert sum(ledger["model_loads"] for ledger in ledgers) == 1


def test_killed_at_random_the_store_ends_as_if_undisturbed_and_no_reader_ever_sees_a_torn_file(
    fast: Workflow, finished_template: Workflow
) -> None:
    """Each run kills the supervisor, its engine, or the whole group, mostly between its first sample and its
    last; then one is left alone."""
    torn: list[str] = []
    over = threading.Event()
    this_test_deletes = threading.Lock()

    def look(states: Path) -> None:
        try:
            sidecar = json.loads(states.with_suffix(".json").read_text())
            open_states(states)
            if file_checksum(states) != sidecar["xxh3_128"]:
                torn.append(states.name)
        except Exception as error:  # noqa: BLE001  whatever it is, a reader met it
            torn.append(f"{states.name}: {error!r}")

    def read() -> None:
        while not over.is_set():
            with this_test_deletes:
                for states in fast.directory.glob("results/store/*/??/*.safetensors"):
                    look(states)
            time.sleep(0.01)

    def delete_most() -> None:
        """So that there is always something to extract. A file that is gone under a reader's eyes would be
        this test's doing."""
        with this_test_deletes:
            stored = sorted(fast.stored_states())
            for states in generator.sample(stored, len(stored) * 3 // 4):
                states.unlink()
                if generator.random() < 0.5:
                    states.with_suffix(".json").unlink()

    def kill_one(number: int, early: bool) -> bool:
        """Start a pass and kill it, `early` while it may still be starting; whether it had stored some of its
        samples and not all."""
        kept = fast.written_at()
        missing = 10 - len(kept)
        supervisor = fast.start_pass(f"{number:03d}")
        if early:
            time.sleep(generator.uniform(0.1, 1.5))
        else:
            enough = len(kept) + generator.randint(1, missing // 2)
            wait_for(lambda: len(fast.stored_states()) >= enough)
            time.sleep(generator.uniform(0, 0.15))
        victim = generator.choice(["supervisor", "engine", "group"])
        if victim == "engine":
            for process in engines_of(supervisor) if supervisor.poll() is None else []:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(generator.uniform(0, 0.3))
        if victim == "group":
            os.killpg(supervisor.pid, signal.SIGKILL)
        supervisor.kill()
        supervisor.wait()
        written = fast.written_at()
        assert kept.items() <= written.items(), "a sample that was there was written a second time"
        return 0 < len(written) - len(kept) < missing

    reader = threading.Thread(target=read)
    reader.start()
    generator = random.Random(6)
    fast.faults = {"sleep_s": 0.1}
    amid = 0
    try:
        for number in range(1, RUNS_AT_RANDOM + 1):
            delete_most()
            amid += kill_one(number, early=number % 5 == 0)
    finally:
        over.set()
        reader.join()
    assert amid >= RUNS_AT_RANDOM / 3, "too few kills met a pass between its first sample and its last"
    kept = fast.written_at()
    last = fast.run_pass("099")
    assert {outcome["state"] for outcome in last["batches"].values()} == {"complete"}
    assert last["samples_extracted"] == 10 - len(kept)
    assert kept.items() <= fast.written_at().items()
    assert not torn
    assert fast.stored() == finished_template.stored()
    for states in fast.directory.glob("results/store/*/??/*.safetensors"):
        assert file_checksum(states) == json.loads(states.with_suffix(".json").read_text())["xxh3_128"]
    left = [
        path
        for path in fast.directory.glob("results/store/*/incoming/*/*")
        if not path.name.startswith(".owner.json.")
    ]
    assert not left, (
        "only a pass killed in the milliseconds before it has signed its folder may leave that, for nobody"
        " knows whose it is"
    )


def test_devices_too_small_for_the_target_are_known_before_anything_is_loaded(
    fast: Workflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job's own devices count: compatibility may have been checked where there is none. Asked of a
    stand-in for nvidia-smi."""
    (tmp_path / "bin").mkdir()
    smi = tmp_path / "bin/nvidia-smi"
    smi.write_text("#!/bin/sh\necho 2\necho 2\n")  # MiB; the demo's weights are 11.6 MB
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}{os.pathsep}{os.environ['PATH']}")
    fast.config["extraction"]["engine"] = "eagle3_data.engines.vllm.engine:VllmEngine"
    fast.config["compatibility"]["device_memory_gib"] = 80
    refused = fast.run("extract")
    assert refused.returncode != 0
    (ledger,) = refused.passes.values()
    assert (ledger["failure"]["class"], ledger["model_loads"]) == ("CompatibilityError", 0)
    (told,) = [line for line in refused.output.splitlines() if "10 samples: CompatibilityError" in line]
    assert (
        "device-memory-short: each of 1 devices takes 11.6 MB of weights and has 2.1 MB; set"
        " extraction.tensor_parallel to 8" in told
    )
    assert not fast.log("extract_pass/001/0.engine.log")


@pytest.mark.nightly  # four runs; that of a pass is killed every day
def test_after_a_kill_of_snakemake_in_any_other_rule_unlock_and_the_same_command_go_on(
    tmp_path: Path, tiny_llama: Path
) -> None:
    """What the rule was making is there in the end, since its job outlives Snakemake, and Snakemake takes it
    for half a file."""
    workflow = Workflow(tmp_path / "run", fast_config(tiny_llama))
    write_jsonl(workflow.directory / "data.jsonl", [conversation(number) for number in range(100, 110)])
    for log, made in (
        ("tokenize_dataset.log", "tokens/batches.json"),
        ("validate_pass/001/001/0.log", "validation/passes/001/001/0.json"),
        ("assemble_training_set.log", "training_set/provenance.json"),
    ):
        snakemake = workflow.start("all")
        wait_for((workflow.logs / log).exists)
        snakemake.kill()
        snakemake.communicate()
        wait_for((workflow.results / made).exists)
        assert workflow.run("--unlock").returncode == 0
    run = workflow.run("all")
    assert run.returncode == 0, run.output
    assert (
        sum(
            json.loads(path.read_text())["model_loads"]
            for path in workflow.results.glob("extraction/passes/*/0.json")
        )
        == 1
    )


def test_a_job_with_fewer_devices_than_the_model_is_split_over_loads_nothing(
    fast: Workflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler was asked for another number of devices than the configuration says."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    fast.config["extraction"] |= {
        "engine": "eagle3_data.engines.vllm.engine:VllmEngine",
        "tensor_parallel": 4,
    }
    ledger = fast.run_pass()
    assert (ledger["devices"], ledger["tensor_parallel"], ledger["model_loads"]) == ("0,1", 4, 0)
    assert ledger["failure"]["class"] == "CompatibilityError"
    told = "devices-too-few: this job has 2 devices and the model is split over 4"
    assert ledger["failure"]["causes"][0].startswith(told)
    assert told in (fast.directory / "pass.log").read_text()
    assert not (fast.directory / "engine.log").exists()
