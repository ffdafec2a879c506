"""What a pass asks the scheduler for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eagle3_data.config import Config, Extraction, load_config
from eagle3_data.extraction.forecast import LONGEST_MIN, SHORTEST_MIN, SUPERVISOR_MB, Pace, forecast_pass, host_memory_mb, walltime_min
from eagle3_data.extraction.identity import identify_extraction
from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.records import write_json
from eagle3_data.target import TargetDescription

KIMI = ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM", "kimi_k25")
KIMI_BYTES = 540_000_000_000
TARGET = TargetDescription("t", *KIMI, 61, 7168, 163_840, 262_144, "int4", KIMI_BYTES, True, True, "f")


def config(**extraction: Any) -> Config:
    return load_config({"target": {"path": "t"}, "data": {"sources": [{"path": "d.jsonl"}]}, "extraction": extraction})


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, 82), (1_000_000, 116), (10_000_000, 416), (10**9, LONGEST_MIN)],
)
def test_the_walltime_grows_with_the_tokens_between_an_hour_and_a_day(tokens: int, expected: int) -> None:
    assert walltime_min(tokens, Pace.assumed(KIMI_BYTES)) == expected


def test_ledgers_that_measured_something_set_the_pace() -> None:
    assumed = Pace.assumed(KIMI_BYTES)
    started = {"load_s": 1_500.0, "extraction_s": 100.0, "tokens_extracted": 900_000}
    again = {"load_s": 1_200.0, "extraction_s": 100.0, "tokens_extracted": 300_000}
    nothing = {"load_s": None, "extraction_s": 0.0, "tokens_extracted": 0}
    assert assumed.measured_by([nothing]) == assumed
    assert assumed.measured_by([nothing, started, again]) == Pace(1_500.0, 6_000.0)


def test_kimi_on_eight_devices_asks_for_what_the_profile_does() -> None:
    assert walltime_min(0, Pace.assumed(0)) == SHORTEST_MIN
    memory = host_memory_mb(Extraction(tensor_parallel=8, in_flight_tokens=65_536), 4, 7168)
    assert memory == 16_000 + 8 * 12_000 + 15_033
    assert memory < 256_000


def test_the_forecast_counts_what_is_left_and_shares_it_between_the_jobs(tmp_path: Path) -> None:
    assert forecast_pass(config(), tmp_path) == (SHORTEST_MIN, SUPERVISOR_MB)
    write_json(tmp_path / "target.json", TARGET.as_record())
    write_json(tmp_path / "tokens/batches.json", {"batches": {"00000": {"tokens": 8_000_000}, "00001": {"tokens": 2_000_000}}})
    assert forecast_pass(config(), tmp_path)[0] == walltime_min(10_000_000, Pace.assumed(KIMI_BYTES))
    assert forecast_pass(config(jobs=2), tmp_path)[0] == walltime_min(5_000_000, Pace.assumed(KIMI_BYTES))
    paths = ExtractionPaths(tmp_path / "extraction")
    write_json(paths.record("00000"), {"pass": "001"})
    assert forecast_pass(config(), tmp_path)[0] == walltime_min(2_000_000, Pace.assumed(KIMI_BYTES))
    measured = {"load_s": 600.0, "extraction_s": 1_000.0, "tokens_extracted": 8_000_000}
    write_json(paths.ledger("001", 0), {"extraction_id": identify_extraction(TARGET, config().extraction).extraction_id, **measured})
    write_json(paths.ledger("001", 1), {"extraction_id": "another", **measured, "load_s": 9_000.0})
    assert forecast_pass(config(), tmp_path)[0] == walltime_min(2_000_000, Pace(600.0, 8_000.0))


def test_layers_that_cannot_be_are_left_to_the_compatibility_check(tmp_path: Path) -> None:
    write_json(tmp_path / "target.json", TARGET.as_record())
    write_json(tmp_path / "tokens/batches.json", {"batches": {"00000": {"tokens": 8_000_000}}})
    assert forecast_pass(config(layers=(3, 3)), tmp_path) == (SHORTEST_MIN, SUPERVISOR_MB)
