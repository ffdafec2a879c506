"""What a pass asks the scheduler for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_data.config import Config, Extraction, load_config
from eagle3_data.extraction.forecast import LONGEST_MIN, SHORTEST_MIN, SUPERVISOR_MB, Forecast, Pace, host_memory_mb, walltime_min
from eagle3_data.extraction.identity import identify_extraction
from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.extraction.planning import Plan
from eagle3_data.records import write_json
from eagle3_data.target import TargetDescription

KIMI = ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", "kimi_k25")
KIMI_BYTES = 540_000_000_000
TARGET = TargetDescription("t", *KIMI, 61, 7168, 163_840, 262_144, "int4", KIMI_BYTES, True, True, "f")


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 82), (1_000_000, 116), (10_000_000, 416), (10**9, LONGEST_MIN)],
)
def test_the_walltime_grows_with_the_tokens_up_to_a_day(tokens: int, expected: int) -> None:
    assert walltime_min(tokens, Pace.assumed(KIMI_BYTES)) == expected


def test_a_small_model_gets_an_hour() -> None:
    assert walltime_min(1_000, Pace.assumed(1_000_000)) == SHORTEST_MIN


def test_ledgers_that_measured_something_set_the_pace() -> None:
    assumed = Pace.assumed(KIMI_BYTES)
    started = {"load_s": 1_500.0, "extraction_s": 100.0, "tokens_extracted": 900_000}
    again = {"load_s": 1_200.0, "extraction_s": 100.0, "tokens_extracted": 300_000}
    nothing = {"load_s": None, "extraction_s": 0.0, "tokens_extracted": 0}
    assert assumed.measured_by([nothing]) == assumed
    assert assumed.measured_by([nothing, started, again]) == Pace(1_500.0, 6_000.0)


def test_host_memory_holds_what_is_in_flight_and_eight_workers() -> None:
    assert host_memory_mb(Extraction(tensor_parallel=8, in_flight_tokens=65_536), 4, 7168) == SUPERVISOR_MB + 8 * 12_000 + 15_033


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A run of two batches, eight and two million tokens, with nothing extracted yet."""
    write_json(tmp_path / "target.json", TARGET.as_record())
    batches = {f"{row:05d}": {"tokens": tokens, "row_group": row, "samples": 1, "fingerprint": "b"} for row, tokens in enumerate((8_000_000, 2_000_000))}
    write_json(tmp_path / "tokens/batches.json", {"batches": batches})
    return tmp_path


def forecast(results: Path, stripe: int = 0, **extraction: Any) -> Forecast:
    return Plan(config(results, **extraction), results).forecast(stripe)


def config(results: Path, **extraction: Any) -> Config:
    settings = {"store": str(results / "store"), **extraction}
    return load_config({"target": {"path": "t"}, "data": {"sources": [{"path": "d.jsonl"}]}, "extraction": settings})


def test_a_job_is_sized_by_its_own_share_of_the_batches(results: Path) -> None:
    assumed = Pace.assumed(KIMI_BYTES)
    assert forecast(results).minutes == walltime_min(10_000_000, assumed)
    assert [forecast(results, stripe, jobs=2).minutes for stripe in (0, 1)] == [walltime_min(tokens, assumed) for tokens in (8_000_000, 2_000_000)]


def test_the_pace_is_that_of_passes_of_the_same_extraction(results: Path) -> None:
    paths = ExtractionPaths(results / "extraction")
    measured = {"load_s": 600.0, "extraction_s": 1_000.0, "tokens_extracted": 8_000_000}
    extraction_id = identify_extraction(TARGET, config(results).extraction).extraction_id
    write_json(paths.ledger("001", 0), {"extraction_id": extraction_id, **measured})
    write_json(paths.ledger("001", 1), {"extraction_id": "another", **measured, "load_s": 9_000.0})
    assert forecast(results).minutes == walltime_min(10_000_000, Pace(600.0, 8_000.0))


def test_layers_that_cannot_be_are_left_to_the_compatibility_check(results: Path) -> None:
    assert forecast(results, layers=(3, 3)) == Forecast(SHORTEST_MIN, SUPERVISOR_MB)
