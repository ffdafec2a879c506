"""What a pass asks the scheduler for."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_data.config import Config, Extraction, Generation, load_config
from eagle3_data.errors import EngineError
from eagle3_data.generation.planning import GenerationPlan
from eagle3_data.hashing import hash_json
from eagle3_data.identity import identify_extraction
from eagle3_data.passes.forecast import (
    LONGEST_MIN,
    SHORTEST_MIN,
    SUPERVISOR_MB,
    WORKER_MB,
    Pace,
    host_memory_mb,
    walltime_min,
)
from eagle3_data.passes.ledger import Ledger
from eagle3_data.passes.paths import PassPaths
from eagle3_data.passes.planning import Plan
from eagle3_data.records import write_json
from eagle3_data.records.failures import describe_situation
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.target import TargetDescription

KIMI = ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", "kimi_k25")
KIMI_BYTES = 540_000_000_000
TARGET = TargetDescription("t", *KIMI, 61, 7168, 163_840, 262_144, "int4", KIMI_BYTES, True, "f")


def ledger(load_s: float | None, extraction_s: float, tokens: int, extraction_id: str = "e") -> Ledger:
    return Ledger(
        number="001",
        stripe=0,
        extraction_id=extraction_id,
        batches={},
        load_s=load_s,
        extraction_s=extraction_s,
        tokens_extracted=tokens,
        elapsed_s=7_000.0,
    )


STOPPED = describe_situation(EngineError, "the pass was stopped by SIGTERM")


NOTHING_TO_DO = ledger(None, 0.0, 0)


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 87), (1_000_000, 121), (10_000_000, 421), (10**9, LONGEST_MIN)],
)
def test_the_walltime_grows_with_the_tokens_up_to_a_day(tokens: int, expected: int) -> None:
    assert walltime_min(tokens, Pace.assumed(KIMI_BYTES), 0) == expected


def test_a_small_model_gets_an_hour_and_what_the_pass_stops_before_the_end() -> None:
    assert walltime_min(1_000, Pace.assumed(1_000_000), 0) == SHORTEST_MIN
    assert walltime_min(1_000, Pace.assumed(1_000_000), 3_600) == SHORTEST_MIN + 60
    assert walltime_min(10**9, Pace.assumed(KIMI_BYTES), 120) == LONGEST_MIN + 2


def test_ledgers_that_measured_something_set_the_pace() -> None:
    assumed = Pace.assumed(KIMI_BYTES)
    started, again = ledger(1_500.0, 100.0, 900_000), ledger(1_200.0, 100.0, 300_000)
    assert assumed.measured_by([]) == assumed.measured_by([NOTHING_TO_DO]) == assumed
    assert assumed.measured_by([NOTHING_TO_DO, started, again]) == Pace(1_500.0, 6_000.0)


def test_a_load_that_was_cut_short_asks_for_more_the_next_time() -> None:
    assumed = Pace.assumed(KIMI_BYTES)
    killed = replace(NOTHING_TO_DO, elapsed_s=5_200.0, failure=STOPPED)
    assert assumed.measured_by([killed]) == Pace(5_200.0, assumed.tokens_per_s)
    assert assumed.measured_by([killed, ledger(6_000.0, 0.0, 0)]) == Pace(6_000.0, assumed.tokens_per_s)
    assert walltime_min(0, assumed.measured_by([killed]), 0) > 5_200 / 60


def test_waiting_for_another_pass_is_no_loading() -> None:
    assumed = Pace.assumed(KIMI_BYTES)
    waited = replace(NOTHING_TO_DO, elapsed_s=36_000.0, lease_wait_s=36_000.0, failure=STOPPED)
    assert assumed.measured_by([waited]) == assumed
    waited_and_killed = replace(waited, elapsed_s=41_200.0)
    assert assumed.measured_by([waited_and_killed]) == Pace(5_200.0, assumed.tokens_per_s)


def test_host_memory_holds_what_is_in_flight_and_eight_workers() -> None:
    settings = Extraction(tensor_parallel=8, in_flight_tokens=65_536)
    assert host_memory_mb(settings, 4, 7168, KIMI_BYTES) == SUPERVISOR_MB + 8 * WORKER_MB + 15_033


def test_states_in_fp8_take_half_of_it_and_a_store_of_their_own() -> None:
    settings = Extraction(storage_dtype="fp8", tensor_parallel=8, in_flight_tokens=65_536)
    assert host_memory_mb(settings, 4, 7168, KIMI_BYTES) == SUPERVISOR_MB + 8 * WORKER_MB + 7_517
    same, small = (identify_extraction(TARGET, Extraction(storage_dtype=name)) for name in ("same", "fp8"))
    before_there_was_a_choice = {**asdict(same)}
    del before_there_was_a_choice["storage_dtype"]
    assert same.extraction_id == hash_json(before_there_was_a_choice)[:16] != small.extraction_id
    assert (same.stored_dtype, small.stored_dtype) == ("bfloat16", "fp8")


def test_host_memory_holds_the_weights_that_stay_there_or_pass_through_it_whole() -> None:
    small = {"in_flight_tokens": 1}
    bare = host_memory_mb(Extraction(**small), 1, 1, 140_000_000_000)
    through = Extraction(engine="eagle3_data.engines.transformers:TransformersEngine", **small)
    assert host_memory_mb(through, 1, 1, 140_000_000_000) == bare + 140_000
    offloading = Extraction(engine_arguments={"cpu_offload_gb": 10}, tensor_parallel=2, **small)
    assert host_memory_mb(offloading, 1, 1, 140_000_000_000) == bare + WORKER_MB + 21_474


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run of two batches, eight and two million tokens, with nothing extracted yet."""
    write_json(tmp_path / "target.json", TARGET.to_json())
    batches = {
        f"{row:05d}": {"tokens": tokens, "row_group": row, "samples": 1, "fingerprint": "b"}
        for row, tokens in enumerate((8_000_000, 2_000_000))
    }
    write_json(tmp_path / "tokens/batches.json", {"batches": batches, "samples": 2, "tokens": 10_000_000})
    return tmp_path


def plan(results: Path, **extraction: Any) -> Plan:
    return Plan(config(results, **extraction), RunPaths(results))


def config(results: Path, **extraction: Any) -> Config:
    settings = {"store": str(results / "store"), **extraction}
    return load_config(
        {"target": {"path": "t"}, "data": {"sources": [{"path": "d.jsonl"}]}, "extraction": settings}
    )


def test_a_job_is_sized_by_its_own_share_of_the_batches(results: Path) -> None:
    assumed = Pace.assumed(KIMI_BYTES)
    assert plan(results).pass_minutes(0) == walltime_min(10_000_000, assumed, 120)
    assert [plan(results, jobs=2).pass_minutes(stripe) for stripe in (0, 1)] == [
        walltime_min(tokens, assumed, 120) for tokens in (8_000_000, 2_000_000)
    ]


def test_the_pace_is_that_of_passes_of_the_same_extraction(results: Path) -> None:
    paths = PassPaths(results / "extraction")
    extraction_id = identify_extraction(TARGET, config(results).extraction).extraction_id
    ledger(600.0, 1_000.0, 8_000_000, extraction_id).write(paths.ledger("001", 0))
    ledger(9_000.0, 1_000.0, 8_000_000, "another").write(paths.ledger("001", 1))
    assert plan(results).pass_minutes(0) == walltime_min(10_000_000, Pace(600.0, 8_000.0), 120)


def test_a_generation_is_sized_by_the_longest_answers_and_then_by_those_that_came(results: Path) -> None:
    """Prompts in two batches of ten million tokens, a thousand conversations, answers of at most 500."""
    batches = json.loads((results / "tokens/batches.json").read_text())
    for batch in batches["batches"].values():
        batch["samples"] = 500
    write_json(results / "prompts/batches.json", batches)
    asked = config(results)
    asked = asked.model_copy(
        update={"generation": Generation(responses="target", max_tokens=500, store=str(results / "answers"))}
    )
    plan = GenerationPlan(asked, RunPaths(results))
    assumed = Pace.assumed(KIMI_BYTES)
    assert plan.pass_minutes(0) == walltime_min(1_000 * 500, assumed, 120)
    measured = replace(ledger(600.0, 100.0, 5_000, plan.generation_id()), samples_extracted=50)
    measured.write(PassPaths(results / "generation").ledger("001", 0))
    again = GenerationPlan(asked, RunPaths(results))
    assert again.pass_minutes(0) == walltime_min(1_000 * 100, Pace(600.0, 50.0), 120)
    assert again.pass_memory_mb() == SUPERVISOR_MB + WORKER_MB


def test_layers_that_cannot_be_are_left_to_the_compatibility_check(results: Path) -> None:
    impossible = plan(results, layers=(3, 3))
    assert (impossible.pass_minutes(0), impossible.pass_memory_mb()) == (SHORTEST_MIN, SUPERVISOR_MB)
