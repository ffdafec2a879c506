#!/usr/bin/env python3
"""Measure the reference on a checkpoint of Llama-8B's shape with random weights, on a GPU and on the CPU.

    python tests/gpu/reference_on_gpu.py [--work DIR] [--layers 32] [--lengths 300 1200]

Writes 16 GB to DIR (default: /dev/shm, which is fast), has transformers in bfloat16 compute what an engine
would store, and prints for the streamed comparison: seconds, peak memory of host and GPU, its forecast, and
the errors. Needs no vLLM and no network. Exits non-zero if right states do not pass, or two swapped slots do.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from eagle3_data.engines.transformers import ReferenceModel  # noqa: E402
from eagle3_data.store.states import States  # noqa: E402
from eagle3_data.target.layers import default_layers  # noqa: E402
from eagle3_data.validation.layer_errors import StoredSample  # noqa: E402
from eagle3_data.validation.reference import ReferenceTarget, compare  # noqa: E402

HIDDEN, INTERMEDIATE, HEADS, KEY_VALUE_HEADS, VOCABULARY = 4096, 14336, 32, 8, 128256


def write_checkpoint(directory: Path, layers: int) -> int:
    """Returns its size in bytes. Weights keep the scale of what they multiply."""
    directory.mkdir(parents=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers,
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS, "vocab_size": VOCABULARY, "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0, "max_position_embeddings": 8192, "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps(config))

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, dtype=torch.bfloat16, device=device).mul_(columns**-0.5).cpu()

    def norm() -> torch.Tensor:
        return (torch.rand(HIDDEN) + 0.5).to(torch.bfloat16)

    key_values = HIDDEN * KEY_VALUE_HEADS // HEADS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (key_values, HIDDEN),
        "self_attn.v_proj": (key_values, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN), "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }  # fmt: skip
    weight_map: dict[str, str] = {}

    def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, directory / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))

    ends = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "lm_head.weight": (VOCABULARY, HIDDEN)}
    save(
        "ends.safetensors",
        {name: matrix(*shape) for name, shape in ends.items()} | {"model.norm.weight": norm()},
    )
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        tensors = {f"{prefix}{name}.weight": matrix(*shape) for name, shape in shapes.items()}
        norms = (f"{prefix}{name}.weight" for name in ("input_layernorm", "post_attention_layernorm"))
        save(f"layer-{layer:02d}.safetensors", tensors | {name: norm() for name in norms})
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def store_states(directory: Path, path: Path, layers: int, lengths: list[int]) -> None:
    """What an engine in bfloat16 stores of two samples."""
    generator = torch.Generator().manual_seed(0)
    model = ReferenceModel(str(directory), torch.bfloat16)
    ids = [torch.randint(VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    states = [model.states(one, default_layers(layers))[0].bfloat16() for one in ids]
    torch.save({"ids": ids, "states": states}, path)


def measure(directory: Path, path: Path, layers: int, stored_bytes: int) -> None:
    stored = torch.load(path, weights_only=True)
    target = ReferenceTarget(
        directory, False, stored_bytes, default_layers(layers), "bfloat16", "bfloat16", False
    )

    def samples(swapped: bool) -> list[StoredSample]:
        order = [0, 2, 1, 3] if swapped else [0, 1, 2, 3]
        return [
            StoredSample(f"s{n}", f"k{n}", tuple(ids), States("BF16", bits, np.array(ids), {}), len(ids))
            for n, (ids, states) in enumerate(zip(stored["ids"], stored["states"], strict=True))
            for bits in [states[:, order].contiguous().view(torch.uint16).numpy()]
        ]

    before, peak, end = anonymous_bytes(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not end.wait(0.002):
            peak = max(peak, anonymous_bytes() - before)

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    (right,) = compare(target, "id", [({}, samples(swapped=False))])
    elapsed_s = time.monotonic() - started
    end.set()
    watcher.join()
    gpu_bytes = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    numbers = 2 * HIDDEN**2 * (1 + KEY_VALUE_HEADS / HEADS) + 3 * HIDDEN * INTERMEDIATE
    host, gpu, layer = (size / 2**30 for size in (peak, gpu_bytes, 4 * numbers))
    print(
        f"{right.device}, {torch.get_num_threads()} threads, {stored_bytes / 1e9:.1f} GB,"
        f" {sum(right.samples.values())} tokens: {elapsed_s:.1f} s (forecast {right.forecast_s:.0f} s); peak"
        f" memory: host {host:.2f} GiB, GPU {gpu:.2f} GiB; a layer in float32 is {layer:.2f} GiB"
    )
    print("\n".join(right.describe()), flush=True)
    (wrong,) = compare(target, "id", [({}, samples(swapped=True))])
    print("\n".join(wrong.faults), flush=True)
    sys.exit(
        not (right.passed and len(wrong.faults) == len(wrong.samples) and "are swapped" in wrong.faults[0])
    )


def anonymous_bytes() -> int:
    """Memory of this process without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("/dev/shm"), help="directory for 16 GB")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument(
        "--lengths", type=int, nargs="+", default=[300, 1200], help="of the samples, in tokens"
    )
    parser.add_argument(
        "--measure", nargs=3, metavar=("CHECKPOINT", "STATES", "BYTES"), help=argparse.SUPPRESS
    )
    arguments = parser.parse_args()
    if arguments.measure:
        directory, path, stored_bytes = arguments.measure
        measure(Path(directory), Path(path), arguments.layers, int(stored_bytes))
    scratch = Path(tempfile.mkdtemp(dir=arguments.work, prefix="reference-"))
    try:
        started = time.monotonic()
        stored_bytes = write_checkpoint(scratch / "target", arguments.layers)
        print(f"wrote {stored_bytes / 1e9:.1f} GB in {time.monotonic() - started:.0f} s", flush=True)
        store_states(scratch / "target", scratch / "states.pt", arguments.layers, arguments.lengths)
        print(f"stored states after {time.monotonic() - started:.0f} s", flush=True)
        right = True
        for hidden in ["0", ""] if torch.cuda.is_available() else [""]:
            child = [
                sys.executable, __file__, "--layers", str(arguments.layers), "--measure",
                str(scratch / "target"), str(scratch / "states.pt"), str(stored_bytes),
            ]  # fmt: skip
            environment = {**os.environ, "CUDA_VISIBLE_DEVICES": hidden}
            right &= subprocess.run(child, env=environment, check=False).returncode == 0
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    sys.exit(not right)


if __name__ == "__main__":
    main()
