#!/usr/bin/env python3
"""Extraction beside plain prefill on one GPU, at a real model's shape: slope and fixed cost, the limits of
the machine, and where the time goes.

    python tests/benchmarks/gpu_extraction.py WORK --disk DIR --limits --results rates.jsonl
    python tests/benchmarks/gpu_extraction.py WORK --disk DIR --results rates.jsonl --ways ours_disk
    python tests/benchmarks/gpu_extraction.py WORK --tiny    # a rehearsal on the CPU

WORK is a directory in memory (below /dev/shm): the checkpoint with random weights is made there once, 16 GB
of Llama-8B's shape or 41 GB of a mixture of experts; DIR is one on the disk to be measured. A way is measured
at two numbers of samples, of different random tokens; a line of --results is one measurement, and every call
prints the table over all lines that are there, so the ways may be measured in several calls.

  plain        `LLM.generate` with max_tokens=1, no extraction. One engine: the small size twice, of which the
               first is the cold one, then the large
  stock        the same with vLLM's own connector, until the last file is whole; nothing is checked
  ours         an extraction pass: until the last sample is checked, hashed, and in the store, as its ledger
               says; a fresh engine for each size, so its fixed cost has in it what a cold engine costs
  speculators  `vllm serve` and `speculators generate-offline-data`, by its own timing

Behind `_memory` or `_disk`, the states go to WORK or DIR. seconds = fixed + tokens / slope. The timers
(timers.py) are in all rates of stock and ours; they cost some microseconds for each sample and step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import timers
from extraction import CONVERSATIONS, Bench, engine_settings

HERE = Path(__file__).parent
GPU_ARGUMENTS = {"enforce_eager": True, "max_num_batched_tokens": 16384, "max_num_seqs": 256}
TINY_ARGUMENTS = {"enforce_eager": True, "max_num_batched_tokens": 1024, "max_num_seqs": 128}
WAYS = ("plain", "stock_memory", "ours_memory", "ours_disk")
LIMIT_BYTES = 64 << 20
"""The states of 2,048 tokens of Llama-8B's shape."""
PATIENCE_S = 60.0


class GpuBench(Bench):
    engine = "timed_engine:TimedEngine"

    def __init__(self, arguments: argparse.Namespace) -> None:
        super().__init__(arguments.work, max(arguments.samples), arguments.tokens)
        self.arguments = arguments
        self.places = {"memory": arguments.work, "disk": arguments.disk}
        self.target = arguments.work / arguments.shape
        self.engine_arguments = arguments.engine_arguments
        self.in_flight_tokens = arguments.in_flight_tokens
        self.storage_dtype = arguments.storage_dtype
        self.fingerprint = {
            "shape": arguments.shape, "tokens": arguments.tokens, "engine_arguments": self.engine_arguments
        }  # fmt: skip

    def measure(self, way: str) -> None:
        """Measure one way at all sizes."""
        kind, _, place = way.partition("_")
        self.place = self.places[place or "memory"]
        self.place.mkdir(parents=True, exist_ok=True)
        if kind in ("plain", "stock"):
            self._in_one_engine(kind, way)
            return
        for samples in self.arguments.samples:
            self.samples = samples
            if kind == "ours":
                how = {"in_flight_tokens": self.in_flight_tokens, "storage_dtype": self.storage_dtype}
                self.note(way, samples, self._ours(way), **how, note=self.arguments.note)
            else:
                self.note(way, samples, samples * self.tokens / self.speculators())
            self.clean()

    def note(self, way: str, samples: int, seconds: float, **facts: Any) -> None:
        tokens = samples * self.tokens
        line = {"way": way, "samples": samples, "seconds": seconds, **facts, **self.fingerprint}
        print(
            f"{way}, {samples} samples: {tokens / seconds:,.0f} tokens/s, {seconds:.3f} s {facts or ''}",
            flush=True,
        )
        with self.arguments.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _in_one_engine(self, kind: str, way: str) -> None:
        """Plain prefill, or vLLM's own connector, in a process of its own."""
        sizes = self.arguments.samples
        for samples in sizes:
            results, config = self.make_run(samples)
            shutil.copytree(results, self.place / f"{kind}-{samples}", dirs_exist_ok=True)
            if samples != sizes[-1]:
                self.clean()
        figures = self.run / "figures.json"
        names = [str(self.place / f"{kind}-{samples}") for samples in sizes]
        command = [sys.executable, __file__, str(self.run), "--child", kind, config, str(figures), *names]
        with self.timing() as environment, (self.run / "child.log").open("w", encoding="utf-8") as log:
            child = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
        self.check(way, child.returncode)
        for figure in json.loads(figures.read_text(encoding="utf-8")):
            self.note(way, **figure)
        self.describe()
        self.clean()
        for name in names:
            shutil.rmtree(name)

    def _ours(self, way: str) -> float:
        """Seconds of a pass, until its last sample is in the store."""
        results, config = self.make_run(self.samples)
        ledger = results / "extraction/passes/001/0.json"
        command = [
            sys.executable, str(HERE / "timed_pass.py"), "--config", config, "--results", str(results),
            "--pass-number", "001", "--stripe", "0", "--engine-log", str(self.run / "engine.log"),
            "--ledger", str(ledger),
        ]  # fmt: skip
        with self.timing() as environment, (self.run / "pass.log").open("w", encoding="utf-8") as log:
            child = subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)
        self.check(way, child.returncode)
        rate = self.read_ledger(ledger, self.samples)
        record = json.loads(ledger.read_text(encoding="utf-8"))
        print({name: record[name] for name in ("load_s", "elapsed_s", "written_bytes")}, flush=True)
        print((self.run / "pass.log").read_text(encoding="utf-8").strip(), flush=True)
        self.describe()
        return self.samples * self.tokens / rate

    def timing(self) -> Any:
        return Timing(self.run / "timers")

    def describe(self) -> None:
        step = self.engine_arguments.get("max_num_batched_tokens", GPU_ARGUMENTS["max_num_batched_tokens"])
        if self.arguments.profile and any((self.run / "timers").iterdir()):
            print(timers.describe(self.run / "timers", step), flush=True)


class Timing:
    """The environment of a process whose timers write to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __enter__(self) -> dict[str, str]:
        self.folder.mkdir()
        path = os.pathsep.join(
            [str(HERE), str(HERE.parents[1] / "scripts"), os.environ.get("PYTHONPATH", "")]
        )
        return {**os.environ, timers.FOLDER: str(self.folder), "PYTHONPATH": path}

    def __exit__(self, *_: object) -> None: ...


# ---- in a process of its own


def run_child(kind: str, config: str, figures: Path, runs: list[Path]) -> None:
    from vllm import LLM

    from eagle3_data.samples import SampleFile

    states = figures.parent / "states"
    states.mkdir()
    settings = engine_settings(config, runs[0], states)
    if kind == "plain":
        from eagle3_data.engines.vllm.engine import llm_arguments

        arguments = llm_arguments(settings)
        del arguments["speculative_config"], arguments["kv_transfer_config"]
    else:
        from timed_engine import timed_arguments

        arguments = timed_arguments(settings, "TimedStockConnector")
        arguments["kv_transfer_config"]["kv_connector_extra_config"] = {"shared_storage_path": str(states)}
    engine = LLM(**arguments)
    samples = [
        [list(sample.token_ids) for sample in SampleFile(run / "tokens/samples.parquet").all_samples()]
        for run in runs
    ]
    found = []
    for number, prompts in enumerate([samples[0], *samples]):
        if number == 1:  # the same ones again, each one token further
            prompts = [[*ids[1:], ids[0]] for ids in prompts]
        generate_s, seconds = generate(engine, prompts, states if kind == "stock" else None)
        found.append(
            {"samples": len(prompts), "seconds": seconds, "generate_s": generate_s, "cold": not number}
        )
    figures.write_text(json.dumps(found), encoding="utf-8")


def generate(engine: Any, prompts: list[list[int]], states: Path | None) -> tuple[float, float]:
    """Seconds until all are computed, and until all files are whole."""
    from vllm import SamplingParams

    started = time.monotonic()
    parameters = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
    engine.generate([{"prompt_token_ids": ids} for ids in prompts], parameters, use_tqdm=False)
    generate_s = time.monotonic() - started
    if states is None:
        return generate_s, generate_s
    while time.monotonic() - started < generate_s + PATIENCE_S:
        files = [file for file in states.iterdir() if file.suffix == ".safetensors"]
        sizes = {file.stat().st_size for file in files}
        if len(files) == len(prompts) and len(sizes) == 1 and sizes != {0}:
            break
        time.sleep(0.005)
    seconds = time.monotonic() - started
    time.sleep(0.5)
    for file in states.iterdir():
        file.unlink()
    return generate_s, seconds


# ---- the machine's limits


def measure_limits(places: dict[str, Path]) -> None:
    import torch

    if torch.cuda.is_available():
        device = torch.ones(LIMIT_BYTES // 2, dtype=torch.bfloat16, device="cuda")
        started = time.monotonic()
        pinned = [torch.empty_like(device, device="cpu", pin_memory=True) for _ in range(8)]
        allocated_s = (time.monotonic() - started) / 8
        for _ in range(2):
            torch.cuda.synchronize()
            started = time.monotonic()
            for host in pinned:
                host.copy_(device, non_blocking=True)
            torch.cuda.synchronize()
            copied_s = (time.monotonic() - started) / 8
        print(
            f"limit: a fresh pinned buffer of {LIMIT_BYTES >> 20} MiB takes {1e3 * allocated_s:.1f} ms, the"
            f" copy from the device {LIMIT_BYTES / copied_s / 1e9:.1f} GB/s",
            flush=True,
        )
    data = os.urandom(LIMIT_BYTES)
    for name, place in places.items():
        for threads, sync in ((1, False), (8, False), (8, True)):
            rate = write_rate(place / "limit", data, threads, sync)
            print(
                f"limit: {name}, {threads} threads{', synced' if sync else ''}: {rate / 1e9:.2f} GB/s",
                flush=True,
            )


def write_rate(directory: Path, data: bytes, threads: int, sync: bool, files: int = 48) -> float:
    directory.mkdir(parents=True)

    def write(number: int) -> None:
        with open(directory / str(number), "wb", buffering=0) as file:
            file.write(data)
            if sync:
                os.fsync(file.fileno())

    started = time.monotonic()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(files)))
    elapsed_s = time.monotonic() - started
    shutil.rmtree(directory)
    return files * len(data) / elapsed_s


# ---- the table


def table(results: Path) -> str:
    """Of every configuration that was measured: slope and fixed cost of each way, beside plain's."""
    groups: dict[str, dict[str, dict[int, list[float]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    for text in results.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        name = line["way"] + (" (cold)" if line.get("cold") else "")
        if line["way"].startswith("ours"):
            told = (f"{line['in_flight_tokens']:,} in flight", line.get("storage_dtype", ""), line["note"])
            name = ", ".join([name, *filter(None, told)])
        keys = ("shape", "tokens", "engine_arguments")
        groups[json.dumps({key: line[key] for key in keys})][name][line["samples"]].append(line["seconds"])
    return "\n\n".join(f"{name}\n{_rows(ways, json.loads(name)['tokens'])}" for name, ways in groups.items())


def _rows(ways: dict[str, dict[int, list[float]]], tokens: int) -> str:
    fits = {way: fit(sizes, tokens) for way, sizes in ways.items()}
    base = fits.get("plain")
    rows = [
        "| way | tokens/s at each number of samples | slope | of plain's | fixed s |",
        "|---|---|---|---|---|",
    ]
    for way, sizes in ways.items():
        rates = ", ".join(f"{n}: {n * tokens / statistics.median(s):,.0f}" for n, s in sorted(sizes.items()))
        slope, fixed = fits[way] or (None, None)
        beside = f"{slope / base[0]:.3f}" if slope and base else ""
        row = (rates, f"{slope:,.0f}" if slope else "", beside, f"{fixed:.3f}" if fixed is not None else "")
        rows.append(f"| {way} | {' | '.join(row)} |")
    return "\n".join(rows)


def fit(sizes: dict[int, list[float]], tokens: int) -> tuple[float, float] | None:
    """Tokens/s and fixed seconds, of the medians at the smallest and the largest size."""
    if len(sizes) < 2:
        return None
    few, many = min(sizes), max(sizes)
    short_s, long_s = statistics.median(sizes[few]), statistics.median(sizes[many])
    slope = (many - few) * tokens / (long_s - short_s)
    return slope, short_s - few * tokens / slope


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", type=Path)
    parser.add_argument("--disk", type=Path, help="by default WORK too")
    parser.add_argument("--shape", choices=["llama-8b", "deepseek-20b", "tiny"], default="llama-8b")
    parser.add_argument("--tokens", type=int, default=2048, help="of each sample")
    parser.add_argument("--samples", type=int, nargs="+", default=[96, 384], help="ascending")
    parser.add_argument(
        "--ways", nargs="+", default=list(WAYS), help=f"{' '.join(WAYS)} stock_disk speculators_memory"
    )
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument(
        "--engine-arguments", type=json.loads, default={}, help="JSON, added to or instead of these here"
    )
    parser.add_argument("--in-flight-tokens", type=int, default=131_072, help="of ours")
    parser.add_argument("--storage-dtype", choices=["same", "fp8"], default="same", help="of ours")
    parser.add_argument("--note", default="", help="kept with the results, as what differs between two calls")
    parser.add_argument("--results", type=Path, help="JSON lines, appended; by default in WORK")
    parser.add_argument("--no-profile", dest="profile", action="store_false")
    parser.add_argument("--limits", action="store_true", help="measure copy and write first")
    parser.add_argument(
        "--tiny", action="store_true", help="a tiny shape and few tokens, to rehearse on the CPU"
    )
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.shape, arguments.tokens, arguments.samples = "tiny", 256, [16, 48]
    defaults = TINY_ARGUMENTS if arguments.tiny else GPU_ARGUMENTS
    arguments.engine_arguments = defaults | arguments.engine_arguments
    arguments.disk = arguments.disk or arguments.work
    arguments.results = arguments.results or arguments.work / "rates.jsonl"
    return arguments


def main() -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    arguments = parse()
    if arguments.child:
        kind, config, figures, *runs = arguments.child
        run_child(kind, config, Path(figures), [Path(run) for run in runs])
        return
    arguments.work.mkdir(parents=True, exist_ok=True)
    bench = GpuBench(arguments)
    if not (bench.target / "model.safetensors.index.json").exists():
        from shapes import make_checkpoint

        started = time.monotonic()
        make_checkpoint(arguments.shape, bench.target, CONVERSATIONS)
        print(f"made {arguments.shape} in {time.monotonic() - started:.0f} s", flush=True)
    if arguments.limits:
        measure_limits(bench.places)
    for _ in range(arguments.repeat):
        for way in arguments.ways:
            attempt(bench, way)
    print(table(arguments.results), flush=True)


def attempt(bench: GpuBench, way: str) -> None:
    """Measure a way; where it fails, go on with the next."""
    started = time.monotonic()
    measure: Callable[[str], None] = bench.measure
    try:
        measure(way)
    except RuntimeError as error:
        print(f"{way} FAILED: {error}", flush=True)
        bench.clean()
    print(f"{way}: {time.monotonic() - started:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
