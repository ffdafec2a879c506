"""scripts/tokenize_dataset.py as a rule runs it: files in, files out, exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from eagle3_data.records import read_json, write_json
from eagle3_data.target import TargetDescription
from tiny_tokenizer import save_tokenizer

ROOT = Path(__file__).parents[2]
CHATML = (ROOT / "tests/data/templates/chatml.jinja").read_text(encoding="utf-8")


def turns(*texts: str) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(texts)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("target")
    tokenizer = save_tokenizer(directory, CHATML)
    description = TargetDescription(
        str(directory), "LlamaForCausalLM", "LlamaForCausalLM", "llama", 4, 64, len(tokenizer), 4096, "none", 1, True, False, "0" * 32
    )
    write_json(directory / "target.json", description.as_record())
    return directory


def tokenize(target: Path, source: Path, output: Path, **settings: object) -> subprocess.CompletedProcess[str]:
    config = {"data": {"sources": [{"path": str(source)}]}, "tokenization": settings, "target": {"path": str(target)}}
    command = [sys.executable, str(ROOT / "scripts/tokenize_dataset.py"), "--config", json.dumps(config)]
    command += ["--target", str(target / "target.json"), "--output-dir", str(output)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines), encoding="utf-8")
    return path


def test_writes_samples_batches_ledger_frequencies_and_view(target: Path, tmp_path: Path) -> None:
    rows = [{"messages": turns("Hi", f"Answer {n}")} for n in (1, 2, 3, 3)] + [{"messages": []}]
    result = tokenize(target, write_lines(tmp_path / "talks.jsonl", *rows), tmp_path / "tokens", batch_tokens=60)
    assert result.returncode == 0, result.stderr
    samples = pq.read_table(tmp_path / "tokens/samples.parquet").to_pylist()
    assert [sample["sample_id"] for sample in samples] == ["talks:0", "talks:1", "talks:2"]
    record = read_json(tmp_path / "tokens/batches.json")
    assert record["rows"] == 5 and record["samples"] == 3
    assert record["dropped"] == {"duplicate": 1, "empty": 1}
    assert record["tokens"] == sum(sample["tokens"] for sample in samples)
    ledger = pq.read_table(tmp_path / "tokens/ledger.parquet").to_pylist()
    assert [entry["fate"] for entry in ledger] == ["kept", "kept", "kept", "dropped", "dropped"]
    frequencies = np.load(tmp_path / "tokens/token_frequencies.npy")
    assert frequencies.sum() == record["trained_tokens"] == sum(sum(sample["loss_mask"]) for sample in samples)
    assert "talks:0" in (tmp_path / "tokens/samples.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in (tmp_path / "tokens").iterdir()) == [
        "batches.json", "ledger.parquet", "samples.html", "samples.parquet", "token_frequencies.npy",
    ]  # fmt: skip


def test_names_the_line_of_unreadable_json_and_leaves_nothing(target: Path, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "talks.jsonl", {"messages": turns("Hi", "Ho")}, '{"messages": [')
    result = tokenize(target, source, tmp_path / "tokens")
    assert result.returncode == 1
    assert f"InputError: {source}, line 2: not valid JSON" in result.stderr
    assert list((tmp_path / "tokens").iterdir()) == []
