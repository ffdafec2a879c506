"""What must hold in the pass's own job before the target is loaded: its devices suffice, and the canary comes
back right."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle3_data.child import Child
from eagle3_data.cli import say
from eagle3_data.compatibility.client.versions import VLLM_DISTRIBUTIONS, installed_version
from eagle3_data.compatibility.run.installed import check_devices
from eagle3_data.config import Compatibility, Extraction
from eagle3_data.engines.base import EngineSettings
from eagle3_data.errors import CompatibilityError, describe_situation, render_failure
from eagle3_data.findings import Finding, told_failures
from eagle3_data.hashing import hash_bytes, hash_json
from eagle3_data.records import find_json
from eagle3_data.target import TargetDescription

CANARY_CODE = Path(__file__).parents[1] / "canary"


@dataclass(frozen=True)
class Proof:
    """Whether the target may be loaded. `findings` are the canary's; `failure` says why not, None if
    something else stopped it."""

    holds: bool
    findings: list[dict[str, Any]] = field(default_factory=list)
    failure: dict[str, Any] | None = None


def prove_devices(
    description: TargetDescription, extraction: Extraction, compatibility: Compatibility
) -> Proof:
    """Whether this job's devices are enough and hold the target. Where compatibility was checked, there may
    have been none."""
    found = check_devices(description, extraction, compatibility)
    for finding in found.findings:
        say(f"{_told(finding.as_record())}; {finding.remedy}")
    if not found.failed:
        return Proof(True)
    return Proof(
        False,
        failure=_failure(
            "the target does not fit this job's devices, so it was not loaded",
            map(Finding.as_record, found.findings),
        ),
    )


def prove_engine(
    settings: EngineSettings,
    allow: Iterable[str],
    directory: Path,
    work: Path,
    log: Path,
    stop: threading.Event,
) -> Proof:
    """Whether a tiny model of the target's architecture goes through the engine and comes out right. Verdicts
    of what passed are kept in `directory`, by all that they depend on; `work` is scratch space, `log` the
    engine's. `stop` ends it without a verdict.
    """
    allowed = sorted(name for name in allow if name.startswith("canary-"))
    verdict = directory / f"{_identity(settings, allowed)}.json"
    if passed := find_json(verdict):
        say("\n  ".join([f"canary: passed before ({verdict})", *map(_told, passed["findings"])]))
        return Proof(True, passed["findings"])
    say("canary: a tiny model of the target's architecture goes through the engine first")
    options = {
        "--settings": json.dumps(asdict(settings)),
        "--work": str(work),
        "--log": str(log),
        "--output": str(verdict),
    }
    child = Child(
        "run_canary", [*(part for option in options.items() for part in option), "--allow", *allowed], log
    )
    try:
        while child.process.poll() is None and not stop.wait(0.2):
            pass
    finally:
        child.kill()
    if passed := find_json(verdict):
        say("\n  ".join(["canary: passed", *map(_told, passed["findings"])]))
        return Proof(not stop.is_set(), passed["findings"])
    if stop.is_set():
        return Proof(False)
    failed = find_json(verdict.with_suffix(".failed.json")) or {"findings": []}
    failure = _failure(
        f"the canary failed, so the target was not loaded; engine output: {log}", failed["findings"]
    )
    failure["causes"] = failure["causes"] or [f"the canary's process {child.end()}"]
    say(render_failure(failure))
    return Proof(False, failed["findings"], failure)


def _identity(settings: EngineSettings, allowed: list[str]) -> str:
    """Of all that the canary's verdict depends on. Where the target and its states are is no part of it."""
    packages = [str(installed_version(*names)) for names in (VLLM_DISTRIBUTIONS, ("torch",))]
    code = [hash_bytes(path.read_bytes()) for path in sorted(CANARY_CODE.glob("*.py"))]
    return hash_json(
        {
            **asdict(settings),
            "model_path": "",
            "states_root": "",
            "allow": allowed,
            "packages": packages,
            "canary": code,
        }
    )


def _failure(message: str, findings: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return describe_situation(CompatibilityError, message, causes=tuple(told_failures(findings)))


def _told(finding: dict[str, Any]) -> str:
    return (
        f"{finding['level']}{' (accepted)' if finding['accepted'] else ''}: {finding['id']}:"
        f" {finding['title']}"
    )
