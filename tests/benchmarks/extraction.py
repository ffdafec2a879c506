"""How fast our extraction pass is, beside plain prefill and beside `vllm serve` with `speculators
generate-offline-data`.

    python tests/benchmarks/extraction.py --samples 48 --tokens 512 --repeat 2 --output extraction.json

On the CPU, with a random Llama and random tokens, both made on the spot. All three get the same engine
arguments, the same cores, and a fresh engine each time (its first, slower steps are in each rate). They are
measured in turn, in alternating order, and compared within each turn. Behind each rate stands how many cores
other processes kept busy meanwhile. A rate is

  ours         tokens_extracted / extraction_s of the ledger: every sample computed, written, checked, hashed
               and in the store
  plain        one `LLM.generate` in process with max_tokens=1: no extraction, no connector, nothing written
  speculators  by its own timing: requests sent, states written and moved, nothing checked; the load of its
  libraries not counted

The cores are given explicitly (VLLM_CPU_OMP_THREADS_BIND), since by default vLLM keeps one core from a plain
engine and two from one with a connector; where there are only two, it then keeps none. So with the defaults,
plain prefill is the slower one there.

Last, the peak memory of an extraction pass with its whole process tree (sum of the proportional set sizes),
for some samples and for ten times as many.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from process_memory import watch_peak

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts"
CONVERSATIONS = ROOT / "config/demo/conversations.jsonl"
ENGINE_ARGUMENTS = {"enforce_eager": True, "max_num_batched_tokens": 4096, "max_num_seqs": 128}
SERVED = ("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization")
"""Engine arguments that a measurement sets, and `vllm serve` is told, too."""
START_TIMEOUT_S = 300.0
sys.path.insert(0, str(SCRIPTS))


class Bench:
    """A scratch directory with target and data; each measurement gets a directory of its own in it."""

    engine_arguments: dict[str, Any] = ENGINE_ARGUMENTS
    engine = "eagle3_data.engines.vllm.engine:VllmEngine"

    def __init__(self, work: Path, samples: int, tokens: int) -> None:
        self.work, self.samples, self.tokens = work, samples, tokens
        self.target = work / "target"
        self.place = work
        """Where runs and their stores are."""
        self.in_flight_tokens = max(65_536, tokens)
        self.storage_dtype = "same"
        self._count = 0

    @property
    def run(self) -> Path:
        """The directory of the measurement that is made now."""
        return self.place / f"run-{self._count}"

    def make_target(self, layers: int, width: int) -> None:
        """A Llama with random weights and the demo's tokenizer."""
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        from eagle3_data.demo.build import read_conversations
        from eagle3_data.demo.tiny_llama import RECIPE
        from eagle3_data.demo.tokenizer import train_tokenizer

        tokenizer = train_tokenizer(RECIPE, read_conversations(CONVERSATIONS))
        config = LlamaConfig(
            vocab_size=2048,
            hidden_size=width,
            head_dim=64,
            num_attention_heads=width // 64,
            num_key_value_heads=max(1, width // 256),
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            max_position_embeddings=max(2048, 2 * self.tokens),
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
        )
        torch.manual_seed(0)
        LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(self.target)
        tokenizer.save_pretrained(self.target)

    def config(self, place: Path) -> str:
        """A configuration file in `place`, with a store of its own."""
        sections = {
            "target": {"path": str(self.target)},
            "data": {"sources": [{"path": str(self.work / "rows.jsonl"), "layout": "tokens"}]},
            "tokenization": {"max_length": self.tokens},
            "extraction": {
                "engine": self.engine,
                "engine_arguments": self.engine_arguments,
                "store": str(place / "store"),
                "in_flight_tokens": self.in_flight_tokens,
                "storage_dtype": self.storage_dtype,
            },
            "compatibility": {"canary": "off"},
        }
        place.mkdir(parents=True, exist_ok=True)
        file = place / "config.json"
        file.write_text(json.dumps(sections), encoding="utf-8")
        return str(file)

    def make_run(self, samples: int) -> tuple[Path, str]:
        """A fresh run's directory with target.json and tokens/, and its configuration with a store of its
        own."""
        self._count += 1
        results, config = self.run / "results/bench", self.config(self.run)
        tokenized = self.work / f"tokenized-{samples}"
        if tokenized.exists():
            shutil.copytree(tokenized, results)
            return results, config
        results.mkdir(parents=True)
        draw = random.Random(samples)
        with (self.work / "rows.jsonl").open("w", encoding="utf-8") as file:
            for number in range(samples):
                file.write(
                    json.dumps(
                        {"id": number, "input_ids": [draw.randrange(300, 2000) for _ in range(self.tokens)]}
                    )
                    + "\n"
                )
        self.script("describe_target", "--target", self.target, "--output", results / "target.json")
        self.script(
            "tokenize_dataset",
            "--config",
            config,
            "--target",
            results / "target.json",
            "--output-dir",
            results / "tokens",
            "--processes",
            1,
        )
        shutil.copytree(results, tokenized)
        return results, config

    def start_script(self, name: str, *arguments: Any) -> subprocess.Popen[str]:
        log = self.run / f"{name}.log"
        with log.open("w", encoding="utf-8") as stderr:
            return subprocess.Popen(
                [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, arguments)],
                stdout=stderr,
                stderr=stderr,
                text=True,
            )

    def script(self, name: str, *arguments: Any) -> None:
        self.check(name, self.start_script(name, *arguments).wait())

    def check(self, name: str, code: int) -> None:
        if code:
            logs = sorted(self.run.glob("*.log"))
            tails = "\n".join(
                f"--- {log.name}\n{log.read_text(encoding='utf-8', errors='replace')[-4000:]}" for log in logs
            )
            raise RuntimeError(f"{name} ended with {code}\n{tails}")

    # ---- what is measured

    def start_pass(self, samples: int) -> tuple[subprocess.Popen[str], Path]:
        """Our extraction pass through its supervisor, running, and the ledger it will write."""
        results, config = self.make_run(samples)
        ledger = results / "extraction/passes/001/0.json"
        engine_log = results.parents[1] / "engine.log"
        fixed = ("--pass-number", "001", "--stripe", "0", "--engine-log", engine_log, "--ledger", ledger)
        return self.start_script("extract_pass", "--config", config, "--results", results, *fixed), ledger

    def read_ledger(self, ledger: Path, samples: int) -> float:
        record = json.loads(ledger.read_text(encoding="utf-8"))
        if record["samples_extracted"] != samples:
            raise RuntimeError(
                f"{record['samples_extracted']} of {samples} samples were extracted: {record['failure']}"
            )
        return record["tokens_extracted"] / record["extraction_s"]

    def ours(self) -> float:
        child, ledger = self.start_pass(self.samples)
        self.check("extract_pass", child.wait())
        return self.read_ledger(ledger, self.samples)

    def plain(self) -> float:
        results, config = self.make_run(self.samples)
        figure = results.parents[1] / "plain.json"
        with (results.parents[1] / "plain.log").open("w", encoding="utf-8") as log:
            command = [sys.executable, __file__, "--child", str(results), config, str(figure)]
            self.check(
                "plain prefill", subprocess.run(command, stdout=log, stderr=log, check=False).returncode
            )
        return json.loads(figure.read_text(encoding="utf-8"))["tokens_per_s"]

    def speculators(self) -> float:
        results, config = self.make_run(self.samples)
        place = results.parents[1]
        data, output, log = place / "dataset", place / "hidden_states", place / "speculators.log"
        save_dataset(results, data)
        with serving(config, results, place) as endpoint, log.open("w", encoding="utf-8") as stderr:
            fixed = [
                "--preprocessed-data",
                str(data),
                "--output",
                str(output),
                "--endpoint",
                endpoint,
                "--fail-on-error",
            ]
            command = [sys.executable, "-m", "speculators", "generate-offline-data", *fixed]
            self.check(
                "speculators",
                subprocess.run(
                    command, stdout=stderr, stderr=stderr, env={**os.environ, "COLUMNS": "500"}, check=False
                ).returncode,
            )
        written = len(list(output.glob("hs_*.safetensors")))
        elapsed = re.search(r"Timing: ([\d.]+)s elapsed", log.read_text(encoding="utf-8"))
        if written != self.samples or elapsed is None:
            raise RuntimeError(
                f"speculators wrote {written} of {self.samples}"
                f" samples\n{log.read_text(encoding='utf-8')[-4000:]}"
            )
        return self.samples * self.tokens / float(elapsed[1])

    def peak_bytes(self, samples: int) -> int:
        child, ledger = self.start_pass(samples)
        peak = watch_peak(child)
        self.check("extract_pass", child.wait())
        self.read_ledger(ledger, samples)
        return peak

    def clean(self) -> None:
        """Remove what the last measurement wrote."""
        shutil.rmtree(self.run)


def engine_settings(config: str, results: Path, states_root: Path) -> Any:
    """The engine's settings as a pass has them."""
    from eagle3_data.config import Extraction, Target, Tokenization, load_section
    from eagle3_data.engines.base import EngineSettings
    from eagle3_data.identity import identify_extraction
    from eagle3_data.target import TargetDescription

    target, extraction = (
        load_section(config, "target", Target),
        load_section(config, "extraction", Extraction),
    )
    max_length = load_section(config, "tokenization", Tokenization).max_length
    layers = identify_extraction(TargetDescription.read(results / "target.json"), extraction).layers
    return EngineSettings(
        extraction.engine,
        target.path,
        layers,
        extraction.dtype,
        1,
        max_length,
        False,
        str(states_root),
        arguments=dict(extraction.engine_arguments),
    )


def run_plain(results: Path, config: str, figure: Path) -> None:
    """In a process of its own: the pass's engine without its speculative method and connector."""
    from vllm import LLM, SamplingParams

    from eagle3_data.engines.vllm.engine import llm_arguments
    from eagle3_data.samples import SampleFile

    arguments = llm_arguments(engine_settings(config, results, results))
    del arguments["speculative_config"], arguments["kv_transfer_config"]
    engine = LLM(**arguments)
    samples = [
        list(sample.token_ids) for sample in SampleFile(results / "tokens/samples.parquet").all_samples()
    ]
    started = time.monotonic()
    outputs = engine.generate(
        [{"prompt_token_ids": ids} for ids in samples],
        SamplingParams(max_tokens=1, temperature=0.0, detokenize=False),
        use_tqdm=False,
    )
    elapsed_s = time.monotonic() - started
    if len(outputs) != len(samples):
        raise RuntimeError(f"{len(outputs)} of {len(samples)} samples came back")
    figure.write_text(json.dumps({"tokens_per_s": sum(map(len, samples)) / elapsed_s}), encoding="utf-8")


def save_dataset(results: Path, directory: Path) -> None:
    """The samples as speculators' prepare-data leaves them."""
    import datasets

    from eagle3_data.samples import SampleFile

    samples = list(SampleFile(results / "tokens/samples.parquet").all_samples())
    columns = {
        "input_ids": [s.token_ids for s in samples],
        "loss_mask": [s.loss_mask for s in samples],
        "seq_len": [len(s.token_ids) for s in samples],
    }
    datasets.Dataset.from_dict(columns).with_format("torch").save_to_disk(directory)


@contextmanager
def serving(config: str, results: Path, place: Path) -> Iterator[str]:
    """`vllm serve` with the pass's engine arguments and vLLM's connector, on the CPU ours, ready; gives its
    endpoint, ends its whole process group."""
    from eagle3_data.engines.vllm.engine import llm_arguments

    states = place / "served"
    states.mkdir()
    arguments = llm_arguments(engine_settings(config, results, states))
    transfer = arguments["kv_transfer_config"]
    if has_gpu():
        transfer["kv_connector"] = "ExampleHiddenStatesConnector"
        del transfer["kv_connector_module_path"]
    else:  # vLLM's own does not run there
        transfer |= {"kv_connector": "LockingConnector", "kv_connector_module_path": "locking_connector"}
    transfer["kv_connector_extra_config"] = {"shared_storage_path": str(states)}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--enforce-eager", "--disable-uvicorn-access-log"]
    for name in ("dtype", "max_model_len", *SERVED):
        if name in arguments:
            options += [f"--{name.replace('_', '-')}", str(arguments[name])]
    for name in ("speculative_config", "kv_transfer_config"):
        options += [f"--{name.replace('_', '-')}", json.dumps(arguments[name])]
    python_path = os.pathsep.join(
        [
            str(SCRIPTS),
            str(Path(__file__).parent),
            str(with_vllm_metadata(place)),
            os.environ.get("PYTHONPATH", ""),
        ]
    )
    with (place / "server.log").open("w", encoding="utf-8") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", arguments["model"], *options],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": python_path},
        )
    try:
        wait_until_healthy(server, f"http://127.0.0.1:{port}/health", place / "server.log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            server.wait(30)
        kill_group(server)


def has_gpu() -> bool:
    from eagle3_data.system.devices import device_names

    return bool(device_names())


def kill_group(process: subprocess.Popen[Any]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def with_vllm_metadata(directory: Path) -> Path:
    """`vllm serve` asks for the metadata of the distribution vllm; where its CPU build is installed under
    another name, say the same of that."""
    try:
        importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = f"{importlib.metadata.version('vllm-cpu')}+cpu"
        info = directory / f"vllm-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n", encoding="utf-8"
        )
    return directory


def wait_until_healthy(server: subprocess.Popen[Any], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(
        f"vllm serve did not start\n{log.read_text(encoding='utf-8', errors='replace')[-6000:]}"
    )


class Others:
    """How many cores all other processes kept busy meanwhile: where it is not near 0, the rates are not to be
    believed."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._busy_s = self._busy_of_others_s()

    def cores(self) -> float:
        return max(0.0, (self._busy_of_others_s() - self._busy_s) / (time.monotonic() - self._started))

    @staticmethod
    def _busy_of_others_s() -> float:
        times = psutil.cpu_times()
        return (
            times.user + times.nice + times.system - sum(os.times()[:4])
        )  # without this process and its finished children


def compare(bench: Bench, repeat: int, ways: dict[str, Callable[[], float]]) -> dict[str, Any]:
    """Measure the ways in turn; print the rates and, of each turn, ours beside the others'."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    ratios: dict[str, list[float]] = {name: [] for name in ways if name != "ours"}
    for turn in range(repeat):
        noise = {}
        for name in list(ways)[:: -1 if turn % 2 else 1]:
            others = Others()
            rates[name].append(ways[name]())
            noise[name] = others.cores()
            bench.clean()
        for name, found in ratios.items():
            found.append(rates["ours"][-1] / rates[name][-1])
        told = ", ".join(f"{name} {found[-1]:,.0f} ({noise[name]:.2f})" for name, found in rates.items())
        beside = ", ".join(f"ours / {name} {found[-1]:.3f}" for name, found in ratios.items())
        print(f"turn {turn + 1}: {told} tokens/s; {beside}", flush=True)
    for name, found in ratios.items():
        print(
            f"ours / {name}: median {statistics.median(found):.3f}, from {min(found):.3f} to"
            f" {max(found):.3f}",
            flush=True,
        )
    return {"tokens_per_s": rates, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=512, help="of each sample")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--repeat", type=int, default=2, help="turns; 0 measures memory only")
    parser.add_argument(
        "--memory-samples",
        type=int,
        default=16,
        help="samples of the smaller pass whose memory is measured; 0 for none",
    )
    parser.add_argument(
        "--skip", nargs="+", choices=["plain", "speculators"], default=[], help="ways that are not measured"
    )
    parser.add_argument(
        "--work",
        type=Path,
        help="directory for scratch files, on the disk that is to be written to; by default the system's",
    )
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, sorted(os.sched_getaffinity(0)))))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if arguments.child:
        run_plain(Path(arguments.child[0]), arguments.child[1], Path(arguments.child[2]))
        return
    figures: dict[str, Any] = {
        name: getattr(arguments, name) for name in ("samples", "tokens", "layers", "width")
    }
    with tempfile.TemporaryDirectory(dir=arguments.work) as directory:
        bench = Bench(Path(directory), arguments.samples, arguments.tokens)
        bench.make_target(arguments.layers, arguments.width)
        ways = {
            name: way
            for name, way in (
                ("plain", bench.plain),
                ("ours", bench.ours),
                ("speculators", bench.speculators),
            )
            if name not in arguments.skip
        }
        if arguments.repeat:
            figures |= compare(bench, arguments.repeat, ways)
        if arguments.memory_samples:
            counts = (arguments.memory_samples, 10 * arguments.memory_samples)
            peaks = []
            for count in counts:
                peaks.append(bench.peak_bytes(count))
                bench.clean()
                print(f"peak memory with {count} samples: {peaks[-1] / 2**20:,.0f} MiB", flush=True)
            figures["peak_bytes"] = dict(zip(counts, peaks, strict=True))
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
