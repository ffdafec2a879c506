"""Timers over the processes of an extraction pass, for benchmarks: each takes down how long its phases took,
as JSON lines in the folder that EXTRACTION_TIMERS names. The clock is the machine's, so the lines of all
processes have one time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

FOLDER = "EXTRACTION_TIMERS"
FULL = 0.9
"""A step of fewer of the tokens that fit counts as not full."""


def mark(phase: str, begin: float, seconds: float = 0.0, cpu_s: float = 0.0, **facts: Any) -> None:
    line = json.dumps({"phase": phase, "begin": begin, "s": seconds, "cpu_s": cpu_s, **facts}) + "\n"
    descriptor = os.open(
        Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT
    )
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@contextmanager
def timed(phase: str, **facts: Any) -> Iterator[None]:
    begin, cpu = time.monotonic(), time.thread_time()
    try:
        yield
    finally:
        mark(phase, begin, time.monotonic() - begin, time.thread_time() - cpu, **facts)


def wrap(owner: Any, name: str, phase: str, facts: Callable[..., dict[str, Any]] | None = None) -> None:
    """Time a function of a module or class from now on; `facts` makes more to take down of its arguments."""
    function = getattr(owner, name)

    @wraps(function)
    def timing(*arguments: Any, **named: Any) -> Any:
        with timed(phase, **(facts(*arguments) if facts else {})):
            return function(*arguments, **named)

    setattr(owner, name, timing)


def read(folder: Path) -> list[dict[str, Any]]:
    lines = [line for file in folder.glob("*.jsonl") for line in file.read_text().splitlines()]
    return sorted(map(json.loads, lines), key=lambda line: line["begin"])


def describe(folder: Path, step_tokens: int) -> str:
    """What the timers say: how full the steps were, where a sample was how long, and each phase."""
    lines = read(folder)
    phases: dict[str, list[dict[str, Any]]] = {line["phase"]: [] for line in lines}
    for line in lines:
        phases[line["phase"]].append(line)
    end = max((line["begin"] + line["s"] for line in phases.get("commit", ())), default=float("inf"))
    steps = [line for line in phases["schedule"] if line["tokens"] and line["begin"] < end]  # no replay's
    said = [_steps(steps, step_tokens), *_ways(phases, steps, end)]
    said += ["| phase | times | sum s | mean ms | longest ms | CPU s |", "|---|---|---|---|---|---|"]
    for name, found in sorted(phases.items()):
        seconds = [line["s"] for line in found]
        figures = (sum(seconds), 1e3 * sum(seconds) / len(seconds), 1e3 * max(seconds))
        cpu = sum(line["cpu_s"] for line in found)
        said.append(
            f"| {name} | {len(found)} | {figures[0]:.3f} | {figures[1]:.2f} | {figures[2]:.1f} | {cpu:.3f} |"
        )
    return "\n".join(said)


def _steps(steps: list[dict[str, Any]], step_tokens: int) -> str:
    if len(steps) < 2:
        return f"{len(steps)} steps"
    tokens = [line["tokens"] for line in steps]
    begins = [line["begin"] for line in steps]
    gaps = [later - earlier for earlier, later in pairwise(begins)]
    rates = [count / gap for count, gap in zip(tokens, gaps, strict=False)]
    slack = sum(count < FULL * step_tokens for count in tokens[1:-1])
    middle = sorted(rates[1:-1] or rates)[len(rates[1:-1] or rates) // 2]
    return (
        f"{len(steps)} steps, {sum(tokens) / len(steps):,.0f} tokens in one; not full, but for the first and"
        f" last: {slack}; a step's tokens until the next: median {middle:,.0f} tokens/s\n"
        f"  tokens {tokens}\n  seconds until the next {[round(gap, 3) for gap in gaps]}"
    )


def _ways(phases: dict[str, list[dict[str, Any]]], steps: list[dict[str, Any]], end: float) -> list[str]:
    """Where samples were, from their departure to the store; only our pass takes that down."""
    if "commit" not in phases:
        return []
    departed = {line["key"]: line["begin"] for line in phases["depart"]}
    arrived = {line["key"]: line["begin"] for line in phases["arrive"]}
    commits = {line["key"]: line for line in phases["commit"]}
    keys = departed.keys() & arrived.keys() & commits.keys()
    stages = {
        "with the engine": [arrived[key] - departed[key] for key in keys],
        "waiting for a thread": [commits[key]["begin"] - arrived[key] for key in keys],
        "committing": [commits[key]["s"] for key in keys],
    }
    told = ", ".join(
        f"{name} {sum(found) / len(found):.3f} s (longest {max(found):.3f})" for name, found in stages.items()
    )
    head = f"first departure to first step {steps[0]['begin'] - min(departed.values()):.3f} s"
    left = f"begin of the last step to the last commit {end - steps[-1]['begin']:.3f} s"
    done = f"last arrival to the last commit {end - max(arrived.values()):.3f} s"
    return [f"a sample was {told}", f"{head}; {left}; {done}"]
