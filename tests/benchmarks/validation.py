"""How fast validation reads, beside plain xxh3 of the same files in the same run, and its memory by a
sample's length.

    PYTHONPATH=scripts:tests python tests/benchmarks/validation.py --output validation.json

Random states of the shape of Llama-8B, with its whole vocabulary, and of the demo, in samples of several
lengths; one core, files in the page cache, seconds of the processor. As many samples as go through the head
at once: a few files, read again and again. `ratio`: with every proof of every sample but token loss:
structure, numbers, checksum, greedy token, shared rows and shared prefixes (all samples begin alike).
`ratio_without_head` leaves out the greedy token, too, `ratio_with_loss` nothing. They take turns, and the
median of the turns' ratios counts.

Memory: the most that a process had while it validated one sample, the mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
import torch
from safetensors.torch import save_file

from eagle3_data.engines.base import states_metadata
from eagle3_data.hashing import sample_key
from eagle3_data.identity import ExtractionIdentity
from eagle3_data.records.checksum import file_checksum
from eagle3_data.samples import Sample
from eagle3_data.store import Store
from eagle3_data.store.magnitudes import compiled_find_largest
from eagle3_data.validation.head import Head, Unknown, read_head
from eagle3_data.validation.judging import Judge
from eagle3_data.validation.measuring import GREEDY_AT_ONCE, SAMPLES_AT_ONCE, Measuring
from eagle3_data.validation.shared_prefix import PrefixIndex

SHARED = 64
"""Tokens with which all samples begin."""
IDENTITY = ExtractionIdentity("f", (2, 16, 29, 32), "bfloat16", "none", "e", {})
TARGETS = {"ratio": 0.5, "memory_ratio": 1.05}
LENGTHS = (2048, 4096, 8192)


@dataclass(frozen=True)
class Shape:
    """Of a target."""

    name: str
    hidden: int
    vocab: int


SHAPES = (Shape("8b", 4096, 128_256), Shape("demo", 256, 4096))


def make_store(
    directory: Path, shape: Shape, count: int, length: int, head: Head | None = None
) -> tuple[Store, list[Sample]]:
    store = Store(directory / "store", IDENTITY.extraction_id)
    store.directory.mkdir(parents=True)
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(min(SHARED, length), len(IDENTITY.layers), shape.hidden, generator=generator)
    samples = []
    for number in range(count):
        ids = [*range(SHARED), *((np.arange(1, length + 1) * (number + 2)) % shape.vocab)][:length]
        ids = [int(one) for one in ids]
        ids[-1] = number
        samples.append(Sample(f"s:{number}", sample_key(ids), tuple(ids), (1,) * length))
        states = torch.randn(length, len(IDENTITY.layers), shape.hidden, generator=generator)
        same = states[: min(SHARED, length - 1)]  # but for rounding; the last rows must differ
        same[:] = first[: len(same)] * (1 + 2**-9 * same.sign())
        part = store.directory / "part"
        tensors = {"hidden_states": states.to(torch.bfloat16), "token_ids": torch.tensor(ids)}
        save_file(tensors, part, metadata=states_metadata({"extraction_id": IDENTITY.extraction_id}, "k"))
        last = states[-1:, -1].to(torch.bfloat16)
        greedy = int(head.logits(last).argmax()) if head else 1
        facts = {"tokens": length, "size_bytes": part.stat().st_size, "greedy_token": greedy}
        store.commit(samples[-1].key, part, {**facts, "xxh3_128": file_checksum(store.directory / "part")})
    return store, samples


def make_head(directory: Path, shape: Shape) -> Head:
    directory.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": shape.vocab,
        "tie_word_embeddings": False,
    }
    (directory / "config.json").write_text(json.dumps(config))
    weights = {
        "model.norm.weight": torch.ones(shape.hidden),
        "lm_head.weight": torch.randn(shape.vocab, shape.hidden),
    }
    stored = {name: one.to(torch.bfloat16) for name, one in weights.items()}
    save_file(stored, directory / "model.safetensors")
    return read_head(directory)


class WithoutLoss(Measuring):
    def _losses(self, last_slots):  # type: ignore[no-untyped-def]
        return [None] * len(last_slots)


def validate(
    store: Store, samples: list[Sample], hidden: int, head: Head | Unknown, kind: type[Measuring]
) -> None:
    measured = kind(store, IDENTITY, hidden, head, 1, compiled_find_largest()).measure(samples)
    index = PrefixIndex((one.key, np.array(one.token_ids, np.int32)) for one in samples)
    judge = Judge(store, head, "bfloat16", measured, index=index)
    assert not judge.rejected, list(judge.rejected.values())[:3]
    assert {"shared-rows", "greedy-token"} <= {proof.proof for proof in judge.proofs(measured)}


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, all threads of this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def throughput(shape: Shape, length: int, repetitions: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        head = make_head(Path(directory) / "target", shape)
        store, samples = make_store(Path(directory), shape, 8, length, head)
        many, few = samples * (GREEDY_AT_ONCE // len(samples)), samples[:SAMPLES_AT_ONCE]
        size = store.states_path(samples[0].key).stat().st_size

        def hash_all(them: list[Sample]) -> None:
            for one in them:
                file_checksum(store.states_path(one.key))

        no_head = Unknown("left out")
        validate(store, few, shape.hidden, head, Measuring)  # compiles; a job does so once
        turns = [
            {
                "plain": seconds(lambda: hash_all(many)) / len(many),
                "without_head": seconds(lambda: validate(store, many, shape.hidden, no_head, WithoutLoss))
                / len(many),
                "ours": seconds(lambda: validate(store, many, shape.hidden, head, WithoutLoss)) / len(many),
                "with_loss": seconds(lambda: validate(store, few, shape.hidden, head, Measuring)) / len(few),
            }
            for _ in range(repetitions)
        ]
    return {
        "xxh3_gb_s": round(max(size / turn["plain"] / 1e9 for turn in turns), 2),
        "ratio": round(median(turn["plain"] / turn["ours"] for turn in turns), 3),
        "ratio_without_head": round(median(turn["plain"] / turn["without_head"] for turn in turns), 3),
        "ratio_with_loss": round(median(turn["plain"] / turn["with_loss"] for turn in turns), 4),
    }


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
        sample = Sample("s", sample_key(ids), tuple(ids), (1,) * len(ids))
        validate(store, [sample], SHAPES[0].hidden, Unknown("left out"), Measuring)
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.make:
        directory, length = arguments.make
        print(json.dumps(make_store(Path(directory), SHAPES[0], 1, int(length))[1][0].token_ids))
        return
    if arguments.peak:
        print(measure_peak(arguments.peak))
        return
    result: dict[str, float] = {}
    for shape in SHAPES:
        for length in arguments.lengths:
            found = throughput(shape, length, arguments.repetitions)
            print(shape.name, length, found, flush=True)
            result |= {f"{shape.name}_{length}_{name}": value for name, value in found.items()}
    result |= {f"peak_mb_{length}_tokens": peak_mb(length) for length in (100, 20_000)}
    result["memory_ratio"] = result["peak_mb_20000_tokens"] / result["peak_mb_100_tokens"]
    print(json.dumps(result, indent=1))
    if arguments.output:
        arguments.output.write_text(json.dumps({**result, "targets": TARGETS}, indent=1))


if __name__ == "__main__":
    main()
