"""How fast validation reads, beside plain xxh3 of the same files in the same run, and its memory by a
sample's length.

    PYTHONPATH=scripts:tests python tests/benchmarks/validation.py --output validation.json

Random states of Llama-8B's shape, its head cut to a quarter for a quarter of the 256 samples that go
through it at once; one core. With every proof of every sample but token loss: structure,
numbers, checksum, greedy token, shared rows and shared prefixes (all samples begin alike). Each is measured
several times in turn, and the best counts, since other programs only make it slower.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from eagle3_data.engines.base import states_metadata
from eagle3_data.hashing import sample_key
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import Sample
from eagle3_data.store import Store
from eagle3_data.validation.head import Head, Unknown, read_head
from eagle3_data.validation.judging import Judge
from eagle3_data.validation.measuring import Measuring
from eagle3_data.validation.shared_prefix import PrefixIndex

HIDDEN, LAYERS, VOCAB, SHARED = 4096, (2, 16, 29, 32), 32_000, 64
IDENTITY = ExtractionIdentity("f", LAYERS, "bfloat16", "none", "e", {})
TARGETS = {"ratio": 0.5, "memory_ratio": 1.5}


def make_store(
    directory: Path, count: int, length: int, head: Head | None = None
) -> tuple[Store, list[Sample]]:
    store = Store(directory / "store", IDENTITY.extraction_id)
    store.directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(min(SHARED, length), len(LAYERS), HIDDEN, generator=generator)
    samples = []
    for number in range(count):
        ids = [*range(SHARED), *((np.arange(length) * (number + 2)) % VOCAB)][:length]
        ids = [int(one) for one in ids]
        ids[-1] = number
        samples.append(Sample(f"s:{number}", sample_key(ids), tuple(ids), (1,) * length))
        states = torch.randn(length, len(LAYERS), HIDDEN, generator=generator)
        states[: len(first) - 1] = first[:-1]
        part = store.directory / "part"
        tensors = {"hidden_states": states.to(torch.bfloat16), "token_ids": torch.tensor(ids)}
        save_file(tensors, part, metadata=states_metadata({"extraction_id": IDENTITY.extraction_id}, "k"))
        last = states[-1:, -1].to(torch.bfloat16)
        greedy = int(head.logits(last).argmax()) if head else 1
        facts = {"tokens": length, "size_bytes": part.stat().st_size, "greedy_token": greedy}
        store.commit(samples[-1].key, part, {**facts, "xxh3_128": file_checksum(store.directory / "part")})
    return store, samples


def make_head(directory: Path) -> Head:
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 32,
        "vocab_size": VOCAB,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    weights = {"model.norm.weight": torch.ones(HIDDEN), "lm_head.weight": torch.randn(VOCAB, HIDDEN)}
    stored = {name: one.to(torch.bfloat16) for name, one in weights.items()}
    save_file(stored, directory / "model.safetensors")
    return read_head(directory)


class WithoutLoss(Measuring):
    def _losses(self, last_slots):  # type: ignore[no-untyped-def]
        return [None] * len(last_slots)


def validate(store: Store, samples: list[Sample], head: Head | Unknown) -> None:
    measured = WithoutLoss(store, IDENTITY, HIDDEN, head).measure(samples)
    index = PrefixIndex((one.key, np.array(one.token_ids, np.int32)) for one in samples)
    judge = Judge(store, head, "bfloat16", measured, index=index)
    assert not judge.rejected, list(judge.rejected.values())[:3]
    assert len(judge.proofs(measured)) == (7 if len(samples) > 1 else 6)


def throughput(repetitions: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        head = make_head(Path(directory) / "target")
        store, samples = make_store(Path(directory), 64, 512, head)
        size = sum(store.states_path(one.key).stat().st_size for one in samples)
        plain, ours = [], []
        for _ in range(repetitions):
            started = time.perf_counter()
            for one in samples:
                file_checksum(store.states_path(one.key))
            plain.append(size / (time.perf_counter() - started) / 1e9)
            started = time.perf_counter()
            validate(store, samples, head)
            ours.append(size / (time.perf_counter() - started) / 1e9)
    return {"xxh3_gb_s": max(plain), "validation_gb_s": max(ours), "ratio": max(ours) / max(plain)}


def peak_mb(length: int) -> float:
    """Peak memory of a process that validates one sample, in MB."""
    command = [sys.executable, __file__, "--peak", str(length)]
    done = subprocess.run(command, env=dict(os.environ), capture_output=True, check=True)
    return float(done.stdout)


def measure_peak(length: int) -> float:
    """Of this process, in MB; the sample is made by another one."""
    with tempfile.TemporaryDirectory() as directory:
        made = subprocess.run(
            [sys.executable, __file__, "--make", directory, str(length)], capture_output=True, check=True
        )
        ids = json.loads(made.stdout)
        store = Store(Path(directory) / "store", IDENTITY.extraction_id)
        validate(store, [Sample("s", sample_key(ids), tuple(ids), (1,) * len(ids))], Unknown("left out"))
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.make:
        print(json.dumps(make_store(Path(arguments.make[0]), 1, int(arguments.make[1]))[1][0].token_ids))
        return
    if arguments.peak:
        print(measure_peak(arguments.peak))
        return
    result = throughput(arguments.repetitions)
    result |= {f"peak_mb_{length}_tokens": peak_mb(length) for length in (100, 20_000)}
    result["memory_ratio"] = result["peak_mb_20000_tokens"] / result["peak_mb_100_tokens"]
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps({**result, "targets": TARGETS}, indent=1))


if __name__ == "__main__":
    main()
