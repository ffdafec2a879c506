"""Engines that die, hang, cannot write, or meet a sample they cannot take; disks that fill up. Nothing
finished is lost, only what failed has failed, and it says why."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from pathlib import Path

import pytest

from eagle3_data.engines.base import EngineSettings, Ready, Request
from eagle3_data.engines.process import EngineProcess
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import SampleFile
from integration.workflow import PATIENCE_S, Workflow, wait_for

pytestmark = pytest.mark.slow


def states_of(ledger: dict[str, object]) -> list[str]:
    return [outcome["state"] for _, outcome in sorted(ledger["batches"].items())]  # type: ignore[attr-defined]


def test_a_sample_that_kills_the_engine_fails_alone_and_the_rest_completes(fast: Workflow) -> None:
    poison = fast.keys("00002")[0]
    fast.faults = {"kill": [poison]}
    ledger = fast.run_pass()
    assert states_of(ledger) == ["complete", "complete", "failed", "complete", "complete"]
    assert ledger["model_loads"] <= 3, "again for the suspects, and for those after the one that killed it"
    assert set(fast.failure_records()) == {poison}
    record = fast.failure_records()[poison]
    assert "was killed by SIGKILL" in record["failure"]["message"]
    assert record["failure"]["notes"] == ["2 engines died while they had this sample"]
    assert record["attempt"] == 1
    assert record["versions"]["fake"] == "1"
    assert "snakemake" in record["versions"]
    assert fast.run_pass("002")["samples_extracted"] == 0
    assert fast.failure_records()[poison]["attempt"] == 2
    assert len(list(fast.results.glob(f"extraction/failures/00002/*-{poison}.json"))) == 2, (
        "the history is kept"
    )
    fast.faults = {}
    assert fast.run_pass("003")["samples_extracted"] == 1


@pytest.mark.timeout(1200)
@pytest.mark.xdist_group("vllm")
def test_real_vllm_loses_only_the_sample_that_kills_it_the_one_it_cannot_write_and_the_one_that_is_too_long(
    fast: Workflow,
) -> None:
    """vLLM's `step` waits forever after a kill -9 of its engine core, and its own connector only logs write
    errors."""
    fast.config["extraction"] |= {
        "engine": "faulty_vllm:FaultyVllmEngine",
        "engine_arguments": {"enforce_eager": True},
    }
    lengths = {
        sample.key: len(sample.token_ids)
        for sample in SampleFile(fast.results / "tokens/samples.parquet").all_samples()
    }
    longest = max(lengths.values())
    too_long = {key for key, length in lengths.items() if length == longest}
    fast.config["tokenization"]["max_length"] = longest - 1  # the tokens are those of a larger bound
    unwritable, *_, poison = [key for key in lengths if key not in too_long]
    fast.faults = {"kill": [poison], "write": [unwritable]}
    ledger = fast.run_pass(timeout=850)
    records = fast.failure_records()
    assert set(records) == {unwritable, poison, *too_long}
    assert records[unwritable]["failure"]["errno"] == errno.EISDIR
    assert len(fast.stored()) == 10 - len(records)
    assert 2 <= ledger["model_loads"] <= 3
    killed, refused = records[poison]["failure"], records[too_long.pop()]["failure"]
    assert killed["notes"] == ["2 engines died while they had this sample"]
    assert killed["message"]
    assert refused["message"] == "vLLM refuses this sample"
    assert str(longest) in refused["causes"][0]


def test_a_hanging_engine_is_ended_and_says_where_it_hung(fast: Workflow) -> None:
    poison = fast.keys("00001")[0]
    fast.faults = {"hang": [poison]}
    fast.config["extraction"]["stall_timeout_s"] = 3
    ledger = fast.run_pass()
    assert states_of(ledger) == ["complete", "failed", "complete", "complete", "complete"]
    assert (
        "the engine hangs: it finished no sample within extraction.stall_timeout_s = 3 s"
        in fast.failure_records()[poison]["failure"]["message"]
    )
    assert "fake_engine.py" in (fast.directory / "engine.log").read_text(), "where each thread was"


def test_an_engine_that_reads_no_more_blocks_nobody(fast: Workflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of far more bytes than a channel holds: whoever hands them over must go on, to notice the hang
    and the signals."""
    fast.faults = {"hang_submit": True}
    fast.arguments()  # writes the faults
    for name in ("PYTHONPATH", "FAKE_ENGINE_FAULTS"):
        monkeypatch.setenv(name, fast.environment()[name])
    settings = EngineSettings(
        "fake_engine:FakeEngine",
        fast.config["target"]["path"],
        (1, 2),
        "bfloat16",
        1,
        4096,
        False,
        str(fast.directory),
        {},
        {},
    )
    engine = EngineProcess(settings, fast.directory / "engine.log")
    try:
        assert isinstance(engine.receive(60), Ready)
        for number in range(200):
            engine.send(
                Request(
                    f"{number:032x}",
                    tuple(range(100_000, 104_000)),
                    str(fast.directory / f"{number}.safetensors"),
                )
            )
        assert engine.receive(1) is None
    finally:
        engine.kill()


def test_more_samples_that_kill_than_restarts_cost_nobody_else_and_each_pass_gets_further(
    fast: Workflow,
) -> None:
    poisons = {fast.keys(batch)[0] for batch in fast.batches()}
    fast.faults = {"kill": list(poisons)}
    fast.config["extraction"]["engine_restarts"] = 2
    first = fast.run_pass()
    assert set(first["deaths"]) >= poisons
    assert "run the same command to continue" in first["failure"]["notes"][-1]
    later = [fast.run_pass(number) for number in ("002", "003")]
    assert all(ledger["model_loads"] <= 3 for ledger in later)
    assert set(fast.stored()) == {key for batch in fast.batches() for key in fast.keys(batch)} - poisons
    assert set(fast.failure_records()) == poisons
    fast.faults = {}
    last = fast.run_pass("004")
    assert (set(states_of(last)), last["samples_extracted"], last["deaths"]) == ({"complete"}, 5, {})


def test_an_engine_that_dies_too_often_ends_the_pass_and_blames_no_sample(fast: Workflow) -> None:
    fast.faults = {"kill": [key for batch in fast.batches() for key in fast.keys(batch)]}
    fast.config["extraction"]["engine_restarts"] = 0
    ledger = fast.run_pass()
    assert set(states_of(ledger)) == {"not_reached"}
    assert "was killed by SIGKILL" in ledger["failure"]["message"]
    assert ledger["model_loads"] == 1


def test_an_engine_that_does_not_load_in_time_is_ended(fast: Workflow) -> None:
    fast.faults = {"hold_start": True}
    fast.config["extraction"]["load_timeout_s"] = 2
    ledger = fast.run_pass()
    assert "did not start within extraction.load_timeout_s = 2 s" in ledger["failure"]["message"]
    assert set(states_of(ledger)) == {"not_reached"}


@pytest.mark.parametrize(("number", "name"), [(5, "Input/output error"), (13, "Permission denied")])
def test_a_write_error_reaches_the_failure_record_with_its_errno(
    fast: Workflow, number: int, name: str
) -> None:
    key = fast.keys("00003")[0]
    fast.faults = {"write": {key: number}}
    assert states_of(fast.run_pass()) == ["complete", "complete", "complete", "failed", "complete"]
    failure = fast.failure_records()[key]["failure"]
    assert failure["errno"] == number
    assert name in failure["message"]


@pytest.mark.parametrize("reserve_gib", [0.0, 0.01], ids=["full", "reserve"])
def test_a_full_disk_stops_the_pass_cleanly_and_it_goes_on_when_there_is_room(
    fast: Workflow, small_disk: Path, reserve_gib: float
) -> None:
    ballast = small_disk / "ballast"
    fast.config["extraction"] |= {"store": str(small_disk / "store"), "disk_reserve_gib": reserve_gib}
    fast.config["tokenization"]["max_length"] = fast.config["extraction"]["in_flight_tokens"] = (
        64  # one sample at a time
    )
    fast.faults = {"sleep_s": 0.5}
    free = shutil.disk_usage(small_disk).free
    room = 250_000 + int(reserve_gib * 2**30)
    ballast.write_bytes(bytes(free - room))
    ledger = fast.run_pass()
    assert ledger["failure"]["class"] == "StorageError"
    assert "make room" in ledger["failure"]["message"]
    kept = ledger["samples_extracted"]
    assert kept < 10
    ballast.unlink()
    rest = fast.run_pass("002")
    assert rest["samples_extracted"] == 10 - kept
    assert set(states_of(rest)) == {"complete"}


@pytest.mark.parametrize("reserve_gib", [0.0, 0.01], ids=["full", "reserve"])
def test_a_disk_that_is_full_at_the_start_is_named_and_it_goes_on_when_there_is_room(
    fast: Workflow, small_disk: Path, reserve_gib: float
) -> None:
    """Store and records on one disk, as they are by default."""
    shutil.move(fast.directory / "results", small_disk / "results")
    (fast.directory / "results").symlink_to(small_disk / "results")
    fast.config["extraction"]["disk_reserve_gib"] = reserve_gib
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError):
        ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free + 4096))
    assert shutil.disk_usage(small_disk).free == 0
    assert fast.start_pass().wait(PATIENCE_S) == 1
    assert "StorageError: the disk is full" in (told := (fast.directory / "pass.log").read_text())
    assert told.rstrip().endswith("make room and run the same command again")
    ballast.unlink()
    fast.config["extraction"]["disk_reserve_gib"] = 0.0
    assert fast.run_pass()["samples_extracted"] == 10


@pytest.mark.parametrize(
    "fault", [{"write": errno.ENOSPC}, {"write": errno.EIO}], ids=["full-disk", "write-error"]
)
def test_no_sample_is_gone_without_for_a_fault_that_is_not_its_own(
    fast: Workflow, fault: dict[str, int]
) -> None:
    key = fast.keys("00002")[0]
    fast.config["extraction"]["max_failed_fraction"] = 0.5
    fast.faults = {name: {key: number} for name, number in fault.items()}
    ledger = fast.run_pass()
    assert ledger["batches"]["00002"]["state"] in ("failed", "not_reached")
    assert not ledger["batches"]["00002"]["left_out"]
    fast.faults = {}
    rest = fast.run_pass("002")
    assert (set(states_of(rest)), len(fast.stored())) == ({"complete"}, 10)


def test_two_workflows_on_one_store_at_once_both_finish_and_write_each_key_once(
    fast: Workflow, tmp_path: Path
) -> None:
    fast.config["extraction"]["store"] = str(tmp_path / "store")
    other = fast.copy(tmp_path / "other")
    workflows = (fast, other)
    for workflow in workflows:
        workflow.hold_all_but(0)
    try:
        running = [workflow.start("extract") for workflow in workflows]
        wait_for(
            lambda: all(workflow.has_logged("model loaded in") for workflow in workflows)
        )  # both found all samples missing
        for workflow in workflows:
            workflow.set_faults({"sleep_s": 0.1})
        outputs = [snakemake.communicate(timeout=PATIENCE_S)[0] for snakemake in running]
    finally:
        other.end()
    assert [snakemake.returncode for snakemake in running] == [0, 0], outputs
    stored = list((tmp_path / "store").glob("*/??/*.safetensors"))
    assert len(stored) == 10
    ledgers = [
        json.loads((workflow.results / "extraction/passes/001/0.json").read_text())
        for workflow in (fast, other)
    ]
    assert sum(ledger["samples_extracted"] for ledger in ledgers) == 10, (
        "each counts what it put there itself"
    )
    for states in stored:
        assert file_checksum(states) == json.loads(states.with_suffix(".json").read_text())["xxh3_128"]
    assert fast.targets() == other.targets() == sorted(fast.batches())
