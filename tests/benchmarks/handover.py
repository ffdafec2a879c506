#!/usr/bin/env python3
"""Assembly of a training set in each format, from a validated run of many small samples: seconds, bytes
written, and the memory of all processes at its peak, at two sizes, since it must not grow with them.

    PYTHONPATH=scripts:tests python tests/benchmarks/handover.py [--rows 10000] [--processes 2]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.process_memory import watch_peak
from made_run import MadeRun

ROOT = Path(__file__).resolve().parents[2]
BUILD = """
import sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from made_run import MadeRun
from eagle3_data.assembly.build import build_training_set
if __name__ == "__main__":
    run = MadeRun(Path(sys.argv[3]), random_states=True, dtype="bfloat16")
    formats = tuple(sys.argv[5].split(","))
    build_training_set(run.settings(formats=formats), run.run.results, run.output, int(sys.argv[4]))
"""


def measure(run: MadeRun, formats: str, processes: int) -> tuple[float, int, float]:
    """Seconds, bytes that were written, and GiB at the peak."""
    shutil.rmtree(run.output, ignore_errors=True)
    script = run.directory / "build.py"
    script.write_text(BUILD)
    arguments = [ROOT / "scripts", ROOT / "tests", run.directory, processes, formats]
    command = [sys.executable, str(script), *map(str, arguments)]
    started = time.monotonic()
    log = run.directory / "build.log"
    with open(log, "w") as output, subprocess.Popen(command, stderr=output, text=True) as process:
        peak_bytes = watch_peak(process)
    seconds = time.monotonic() - started
    if process.returncode:
        sys.exit(log.read_text())
    files = [path.lstat() for path in run.output.rglob("*") if path.is_file()]
    written = sum(facts.st_size for facts in files if facts.st_nlink == 1)
    return seconds, written, peak_bytes / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--work", type=Path)
    arguments = parser.parse_args()
    work = arguments.work or Path(tempfile.mkdtemp(prefix="handover-"))
    print("| rows | format | s | rows/s | bytes written | memory GiB |\n|---|---|---|---|---|---|")
    for rows in (arguments.rows // 4, arguments.rows):
        directory = work / str(rows)
        run = MadeRun(
            directory, rows, arguments.tokens, random_states=True, dtype="bfloat16", rows_a_batch=500
        )
        for formats in ("speculators", "specforge", "modelopt"):
            seconds, written, gib = measure(run, formats, arguments.processes)
            figures = f"{seconds:.1f} | {rows / seconds:.0f} | {written:,} | {gib:.2f}"
            print(f"| {rows:,} | {formats} | {figures} |", flush=True)
    if arguments.work is None:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
