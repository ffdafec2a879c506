"""What assembly takes from the records of the stages before it. The set itself is assembled in
tests/integration."""

from pathlib import Path

from eagle3_data.assembly.provenance import engines_used
from eagle3_data.assembly.speculators import accepted_findings
from eagle3_data.records import write_json


def finding(name: str, accepted: bool = True) -> dict[str, object]:
    return {"id": name, "level": "fail", "title": name, "accepted": accepted}


def ledger(**facts: object) -> dict[str, object]:
    return {"pass": "001", "stripe": 0, "extraction_id": "e", "batches": {}, **facts}


def test_what_was_accepted_before_the_load_or_by_a_canary_is_listed_once(tmp_path: Path) -> None:
    write_json(
        tmp_path / "compatibility/report.json",
        {"findings": [finding("disk-short"), finding("disk-tight", accepted=False)]},
    )
    for number in ("001", "002"):
        write_json(
            tmp_path / f"extraction/passes/{number}/0.json",
            ledger(canary=[finding("canary-layer"), finding("canary-quantization", accepted=False)]),
        )
    write_json(tmp_path / "extraction/passes/003/stored.json", ledger())
    assert [found.id for found in accepted_findings(tmp_path)] == ["disk-short", "canary-layer"]


def test_a_pass_of_an_older_version_has_no_canary_in_its_ledger(tmp_path: Path) -> None:
    write_json(tmp_path / "compatibility/report.json", {"findings": []})
    write_json(tmp_path / "extraction/passes/001/0.json", ledger())
    assert accepted_findings(tmp_path) == []


def test_what_the_states_were_computed_with_is_listed_once(tmp_path: Path) -> None:
    v1, v2 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}
    passes = [("e", v1, 1), ("e", v1, 2), ("e", v2, 1), ("e", {"of": "a pass that loaded nothing"}, 0)]
    for number, (extraction_id, environment, loads) in enumerate([*passes, ("other", {}, 1)]):
        facts = {"extraction_id": extraction_id, "environment": environment, "model_loads": loads}
        record = ledger(**facts, versions={"vllm": "0.32.0"}, kernels=["Using V2 Model Runner"])
        write_json(tmp_path / f"extraction/passes/{number:03d}/0.json", record)
    alike = {"versions": {"vllm": "0.32.0"}, "kernels": ["Using V2 Model Runner"]}
    assert [one.to_json() for one in engines_used(tmp_path, "e")] == [
        {**alike, "environment": v1},
        {**alike, "environment": v2},
    ]
