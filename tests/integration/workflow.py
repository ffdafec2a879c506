"""Runs the real workflow with real Snakemake in a scratch directory, and tells what a run did."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from eagle3_data.config import load_config, write_sections

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 300
"""For what must happen; only a test that fails waits so long."""
FAKE_ENGINE = "fake_engine:FakeEngine"
FAKE_GENERATOR = "fake_generator:FakeGenerator"


@dataclass(frozen=True)
class Run:
    """One call of snakemake. `passes` are the ledgers it made, by "<number>/<stripe>"; `gates` the batches
    whose gate ran."""

    returncode: int
    output: str
    passes: dict[str, dict[str, Any]]
    gates: list[str]
    jobs: list[str] = field(default_factory=list)

    @property
    def nothing_done(self) -> bool:
        return self.returncode == 0 and "Nothing to be done" in self.output


class Workflow:
    """A scratch working directory with a configuration; `config` may be changed between runs."""

    def __init__(self, directory: Path, config: dict[str, Any], root: Path = ROOT) -> None:
        self.directory, self.root = directory, root
        self.config: dict[str, Any] = {"run": "test", **config}
        self.faults: dict[str, Any] = {}
        self._started: list[subprocess.Popen[Any]] = []
        directory.mkdir(parents=True, exist_ok=True)

    def copy(self, directory: Path) -> Workflow:
        """The same workflow and all its files, times included, in another directory."""
        shutil.copytree(self.directory, directory)
        return Workflow(directory, copy.deepcopy(self.config), self.root)

    def copy_project(self) -> Path:
        """Use a copy of the workflow's own files, to be changed by a test."""
        project = self.directory / "project"
        for name in ("rules", "scripts", "config", "envs", "profiles"):
            shutil.copytree(self.root / name, project / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(self.root / "Snakefile", project)
        self.root = project
        return project

    @property
    def results(self) -> Path:
        return self.directory / "results" / self.config["run"]

    @property
    def logs(self) -> Path:
        return self.directory / "logs" / self.config["run"]

    def arguments(self, *arguments: str) -> list[str]:
        replace_text(self.directory / "config.yaml", yaml.safe_dump(self.config))
        self.set_faults(self.faults)
        fixed = [
            "-s",
            str(self.root / "Snakefile"),
            "--configfile",
            "config.yaml",
            "--workflow-profile",
            str(self.root / "profiles/default"),
            "--cores",
            "2",
        ]
        return [sys.executable, "-m", "snakemake", *fixed, *arguments]

    def set_faults(self, faults: dict[str, Any]) -> None:
        """Also for an engine that runs already: it reads them anew for every sample."""
        self.faults = faults
        replace_text(self.directory / "faults.json", json.dumps(faults))

    def hold_all_but(self, number: int) -> None:
        """Have engines wait before the last samples, all but the first `number`: until they are set free, or
        killed."""
        self.set_faults({"hold": self.all_keys()[number:]})

    def environment(self) -> dict[str, str]:
        engines = os.pathsep.join([str(ROOT / "tests/engines"), os.environ.get("PYTHONPATH", "")])
        return {
            **os.environ,
            "PYTHONPATH": engines,
            "FAKE_ENGINE_FAULTS": str(self.directory / "faults.json"),
        }

    def run(self, *arguments: str, timeout: float = 800) -> Run:
        """`timeout` is below that of a test: what a run said before it hung is worth more than that something
        did."""
        before = self._ledgers()
        done = subprocess.run(
            self.arguments(*arguments),
            cwd=self.directory,
            env=self.environment(),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )
        output = done.stdout + done.stderr
        after = self._ledgers()
        return Run(
            returncode=done.returncode,
            output=output,
            passes={name: json.loads(path.read_text()) for name, path in after.items() if name not in before},
            gates=sorted(
                set(re.findall(r"rule extract_batch:\n(?:    .*\n)*?    wildcards: batch=(\d{5})", output))
            ),
            jobs=re.findall(r"^local(?:rule|checkpoint) (\w+):", output, re.MULTILINE),
        )

    def _ledgers(self) -> dict[str, Path]:
        return {
            f"{path.parent.name}/{path.stem}": path
            for path in self.results.glob("extraction/passes/*/[0-9]*.json")
        }

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """snakemake in a process group of its own, to be killed or interrupted."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        command = self.arguments(*arguments)
        self._started.append(
            subprocess.Popen(
                command,
                cwd=self.directory,
                env=self.environment(),
                text=True,
                start_new_session=True,
                **pipes,
            )
        )
        return self._started[-1]

    def start_pass(self, number: str = "001", kind: str = "extract") -> subprocess.Popen[bytes]:
        """A pass as its rule starts it, without Snakemake. Its log is pass.log."""
        self.arguments()  # writes configuration and faults
        more = ["generation"] if kind == "generate" else ["validation"]
        options = {
            "--config": str(
                write_sections(
                    load_config(self.config),
                    self.directory / "sections",
                    "target",
                    "tokenization",
                    "extraction",
                    "compatibility",
                    *more,
                )
            ),
            "--results": str(self.results.relative_to(self.directory)),
            "--pass-number": number,
            "--stripe": "0",
            "--engine-log": "engine.log",
            "--ledger": str(self.ledger(number, kind)),
        }
        command = [
            sys.executable,
            str(self.root / "scripts" / f"{kind}_pass.py"),
            *(part for option in options.items() for part in option),
        ]
        with open(self.directory / "pass.log", "ab") as log:
            self._started.append(
                subprocess.Popen(
                    command, cwd=self.directory, env=self.environment(), stderr=log, start_new_session=True
                )
            )
        return self._started[-1]

    def end(self) -> None:
        """After a test, whatever it did: nothing waits for it any more, and what it started is killed."""
        self.set_faults({})
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def run_pass(
        self, number: str = "001", timeout: float = PATIENCE_S, kind: str = "extract"
    ) -> dict[str, Any]:
        """A whole pass without Snakemake; returns its ledger."""
        process = self.start_pass(number, kind)
        try:
            assert process.wait(timeout) == 0, (self.directory / "pass.log").read_text()
        finally:
            process.kill()
        return json.loads(self.ledger(number, kind).read_text())

    def status(self, *arguments: str) -> str:
        """What scripts/show_status.py says, from another terminal."""
        command = [
            sys.executable,
            str(self.root / "scripts/show_status.py"),
            "--results",
            str(self.results),
            *arguments,
        ]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def ledger(self, number: str, kind: str = "extract") -> Path:
        stage = {"extract": "extraction", "generate": "generation"}[kind]
        return self.results / f"{stage}/passes/{number}/0.json"

    def failure_records(self) -> dict[str, dict[str, Any]]:
        """The newest failure record of each sample, by key."""
        paths = sorted(self.results.glob("extraction/failures/*/*-*.json"))
        return {path.stem.split("-")[1]: json.loads(path.read_text()) for path in paths}

    def batches(self) -> dict[str, Any]:
        return json.loads((self.results / "tokens/batches.json").read_text())["batches"]

    def keys(self, batch: str) -> list[str]:
        import pyarrow.parquet as pq

        table = pq.ParquetFile(self.results / "tokens/samples.parquet").read_row_group(
            self.batches()[batch]["row_group"], columns=["key"]
        )
        return table["key"].to_pylist()

    def all_keys(self) -> list[str]:
        """In the order in which they are extracted."""
        return [key for batch in sorted(self.batches()) for key in self.keys(batch)]

    def questions(self) -> dict[str, str]:
        """By sample id, the keys of what the target is asked, in the order in which it is."""
        import pyarrow.parquet as pq

        table = pq.read_table(self.results / "prompts/prompts.parquet", columns=["sample_id", "key"])
        return dict(zip(*(table[name].to_pylist() for name in ("sample_id", "key")), strict=True))

    def stored(self) -> dict[str, str]:
        """Checksums, by key, of every sample in the store: one with both its files, of which the sidecar
        comes first."""
        sidecars = [json.loads(states.with_suffix(".json").read_text()) for states in self.stored_states()]
        return {sidecar["key"]: sidecar["xxh3_128"] for sidecar in sidecars}

    def stored_states(self) -> list[Path]:
        return [
            path
            for path in self.directory.glob("results/store/*/??/*.safetensors")
            if path.with_suffix(".json").exists()
        ]

    def written_at(self) -> dict[str, int]:
        """When each sample in the store was written, by key: a sample that is extracted a second time changes
        here."""
        return {states.stem: states.stat().st_mtime_ns for states in self.stored_states()}

    def targets(self) -> list[str]:
        return sorted(path.stem for path in self.results.glob("extraction/batches/*.json"))

    def log(self, name: str) -> str:
        return (self.logs / name).read_text()

    def has_logged(self, text: str, name: str = "extract_pass/001/0.log") -> bool:
        """Whether a log, of the first pass unless told otherwise, holds `text` by now."""
        return (self.logs / name).exists() and text in self.log(name)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never a part."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    os.replace(part, path)


def conversation(number: int) -> dict[str, Any]:
    """A short conversation, different for each number."""
    question, answer = (
        f"What is {number} plus {number}?",
        f"{number} plus {number} is {2 * number}, since doubling {number} gives {2 * number}.",
    )
    return {
        "id": f"sum-{number}",
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
    }


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
