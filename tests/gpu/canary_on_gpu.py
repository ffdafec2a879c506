#!/usr/bin/env python3
"""Run the canary of full-size, quantized architectures on a CUDA machine, and print what it took.

    python tests/gpu/canary_on_gpu.py [--tensor-parallel N] [--work DIR] [--targets Kimi-K2.5 DeepSeek-V3]

Kimi-K2.5's in INT4, DeepSeek-V3's in bfloat16, since its fp8 is not covered. Their config.json and the names
of their quantized weights are all it needs. Exits non-zero if a canary does not come out as told here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests")]

from eagle3_data.engines.base import EngineSettings  # noqa: E402
from model_configs import FULL_SIZE, KIMI_PACKED, write_target  # noqa: E402

VLLM = "eagle3_data.engines.vllm.engine:VllmEngine"
UNCOVERED = {"Kimi-K2.5": [], "DeepSeek-V3": ["canary-quantization"]}


def prove(name: str, tensor_parallel: int, work: Path) -> tuple[float, list[dict[str, str]]]:
    """Seconds, and the findings of the canary."""
    target = write_target(work / "target", FULL_SIZE[name], KIMI_PACKED if name == "Kimi-K2.5" else ())
    arguments = {"enforce_eager": True, "gpu_memory_utilization": 0.5}
    settings = EngineSettings(
        VLLM, str(target), (2,), "bfloat16", tensor_parallel, 512, False, str(work), arguments=arguments
    )
    output = work / "verdict.json"
    paths = ["--work", work / "canary", "--log", work / "engine.log", "--output", output]
    started = time.monotonic()
    code = subprocess.run(
        [sys.executable, ROOT / "scripts/run_canary.py", "--settings", json.dumps(asdict(settings)), *paths],
        check=False,
    ).returncode
    elapsed_s = time.monotonic() - started
    record = output if code == 0 else output.with_suffix(".failed.json")
    return elapsed_s, json.loads(record.read_text())["findings"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("gpu-canary"),
        help="scratch directory; must not hold an earlier proof",
    )
    parser.add_argument("--targets", nargs="+", default=list(UNCOVERED))
    arguments = parser.parse_args()
    all_right = True
    for name in arguments.targets:
        elapsed_s, findings = prove(name, arguments.tensor_parallel, arguments.work.resolve() / name)
        told = "; ".join(f"{finding['id']}: {finding['title']}" for finding in findings) or "passed"
        print(
            f"canary of {name}, tensor parallel {arguments.tensor_parallel}: {elapsed_s:.0f} s, {told}",
            flush=True,
        )
        all_right &= [finding["id"] for finding in findings] == UNCOVERED[name]
    sys.exit(not all_right)


if __name__ == "__main__":
    main()
