"""Records that are damaged are refused by file, key and remedy, and never end in a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

import damages
from eagle3_data.errors import InputError, SampleError, StorageError
from eagle3_data.findings import Finding, Findings
from eagle3_data.passes.batch_records import BatchRecord, FailureRecord, FailureSummary
from eagle3_data.passes.lease import LeaseState
from eagle3_data.passes.ledger import BatchOutcome, FailedSample, Gate, Ledger
from eagle3_data.records import MisfitError, Record, key, read_json
from eagle3_data.records.batch_index import BatchEntry, BatchIndex, SampleName
from eagle3_data.records.failures import describe_situation
from eagle3_data.system.processes import this_process
from eagle3_data.validation.verdict import BatchVerdict

FACTS: dict[str, Any] = {"number": "001", "stripe": 0, "extraction_id": "e", "command": "snakemake"}
FAILED = [FailedSample("s", "k", "failures/k.json")]
OUTCOME = BatchOutcome("failed", "f", 3, [], FAILED, 1)
FAILURE = describe_situation(SampleError, "too long", causes=("ValueError: x",))
FINDING = Finding("disk-short", "fail", "no room", accepted=True)
RECORDS: list[Record] = [
    FAILURE,
    Findings((FINDING,), {"vLLM": "0.32"}, 1.5),
    BatchIndex({"00000": BatchEntry(0, 3, 30, "f", 12)}, 3, 30, dropped={"empty": 1}),
    Ledger(**FACTS, batches={"00000": OUTCOME}, failure=FAILURE, canary=[FINDING], crashes={"k": 1}),
    BatchRecord(**FACTS, batch="00000", fingerprint="f", samples=[SampleName("s", "k")], left_out=FAILED),
    FailureRecord(
        **FACTS,
        versions={"vllm": None},
        retry=None,
        batch="00000",
        sample_id="s",
        key="k",
        tokens=3,
        attempt=1,
        failure=FAILURE,
    ),
    FailureSummary(**FACTS, versions={}, retry=None, **vars(OUTCOME), batch="00000", causes={"x": 1}),
    LeaseState(
        **FACTS, **vars(this_process()), phase="loading", started_at=1.0, updated_at=2, token="t", beat=1
    ),
    Gate("00000", "f", "passes/001/0.json", 3, FAILED),
    BatchVerdict("00000", "f", "e", 3, 30, 99, {"k": "checksum"}),
    this_process(),
]
KINDS = [type(record).__name__ for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=KINDS)
def test_a_record_comes_back_as_it_was_written(tmp_path: Path, record: Record) -> None:
    record.write(tmp_path / "r.json")
    assert type(record).read(tmp_path / "r.json") == record


@pytest.mark.parametrize("record", RECORDS, ids=KINDS)
def test_each_key_missing_or_of_a_wrong_type_is_named_or_has_a_default(
    tmp_path: Path, record: Record
) -> None:
    record.write(path := tmp_path / "r.json")
    whole = json.loads(path.read_text())
    refused = 0
    for name in sorted(whole.keys() - {"format_version", "verdict"}):
        for damaged in (
            {other: value for other, value in whole.items() if other != name},
            {**whole, name: {"no": ["such", {"thing": 1}]}},
            {**whole, name: [1, None]},
        ):
            path.write_text(json.dumps(damaged))
            try:
                type(record).read(path)
            except InputError as error:
                refused += 1
                assert str(path) in str(error) and name in str(error) and "delete it" in str(error)
    assert refused >= len(whole) - 2


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "{}", "[]", "null", "1e999", '"text"', '{"format_version": 1}', '{"format_version": 2}',
        '{"format_version": true}', "[" * 100_000, '{"format_version": 1, "batches": []}',
        '{"format_version": 1, "batches": {"00000": {}}}', "\ud800",
    ],
)  # fmt: skip
def test_what_is_no_ledger_is_refused_in_one_line_with_its_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "0.json"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with pytest.raises(InputError, match="delete it and run the same command again") as caught:
        Ledger.read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert Ledger.find(path) is None


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["directory", "fifo"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "r.json")
    with pytest.raises(InputError, match="delete it"):
        read_json(tmp_path / "r.json")


def test_what_may_not_be_read_is_not_called_damaged(tmp_path: Path) -> None:
    Gate("00000", "f", "passes/001/0.json", 3, FAILED).write(path := tmp_path / "r.json")
    with damages.forbidden(path):
        for read in (read_json, Gate.read, Gate.is_damaged):
            with pytest.raises(StorageError, match="permission denied") as caught:
                read(path)
            assert "delete" not in str(caught.value) and str(path) in str(caught.value)
        assert Gate.find(path) is None
    assert not Gate.is_damaged(path)


def test_an_absent_record_is_called_absent(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        Gate.read(tmp_path / "r.json")


@dataclass(frozen=True)
class Inner(Record):
    kind: Literal["a", "b"]
    size: int


@dataclass(frozen=True, kw_only=True)
class Outer(Record):
    type: str = key("class")
    inner: dict[str, list[Inner]]
    maybe: Inner | None = None
    ratio: float = 0.0
    pair: tuple[int, ...] = ()
    anything: Any = None
    names: list[str] = field(default_factory=list)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"class": 1}, "class must be a text, not 1"),
        ({"inner": {"x": [{"kind": "c", "size": 1}]}}, "inner.x.0.kind must be 'a' or 'b'"),
        ({"inner": {"x": [{"kind": "a", "size": True}]}}, "inner.x.0.size must be an integer, not true"),
        ({"inner": {"x": [{"kind": "a"}]}}, "inner.x.0.size is missing"),
        ({"inner": []}, "inner must be an object"),
        ({"maybe": {"kind": "a", "size": "1"}}, 'maybe.size must be an integer, not "1"'),
        ({"maybe": 3}, "maybe must be"),
        ({"ratio": "1"}, "ratio must be a number"),
        ({"pair": [1, None]}, "pair.1 must be an integer"),
        ({"names": {}}, "names must be a list"),
    ],
)  # fmt: skip
def test_a_misfit_names_the_place(change: dict[str, Any], told: str) -> None:
    with pytest.raises(MisfitError) as caught:
        Outer.from_json({"class": "c", "inner": {}, **change})
    assert told in str(caught.value)


def test_integers_are_numbers_and_unknown_keys_are_ignored() -> None:
    read = Outer.from_json(
        {"class": "c", "inner": {}, "ratio": 1, "pair": [1, 2], "later": "x", "anything": []}
    )
    assert (read.ratio, read.pair, read.anything) == (1, (1, 2), [])


def test_a_gate_imports_little() -> None:
    """A thousand gates are a thousand processes."""
    program = "import sys, eagle3_data.passes.ledger as _; print(*sys.modules)"
    scripts = Path(__file__).parents[2] / "scripts"
    loaded = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(scripts)},
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    assert not {"numpy", "pyarrow", "pydantic", "yaml", "asyncio", "socket"} & set(loaded)
