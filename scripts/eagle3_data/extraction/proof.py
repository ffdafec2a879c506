"""What must hold in the pass's own job before the target is loaded: its devices suffice, and the canary comes
back right."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from eagle3_data.compatibility.run.installed import check_devices
from eagle3_data.config import Compatibility, Extraction
from eagle3_data.engines.base import EngineSettings
from eagle3_data.engines.log import reported_kernels, with_root_cause
from eagle3_data.errors import CompatibilityError, EngineError, InputError
from eagle3_data.findings import Finding, Findings, describe_failures
from eagle3_data.hashing import hash_bytes, hash_json
from eagle3_data.log import say
from eagle3_data.records.failures import Failure, describe_situation
from eagle3_data.system.child import Child
from eagle3_data.system.environment import kernel_packages, machine, shown_variables, vllm_variables
from eagle3_data.system.read_ahead import reading_ahead
from eagle3_data.target import TargetDescription, require_described

CANARY_CODE = Path(__file__).parents[1] / "canary"
ENGINES_CODE = Path(__file__).parents[1] / "engines"


@dataclass(frozen=True)
class PassedCanary(Findings):
    """The verdict of a canary that passed, with what vLLM said it computed with and the variables it ran
    under."""

    kernels: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """Whether the target may be loaded. `findings` are the canary's, `kernels` what vLLM said it computed the
    canary with; `failure` says why not, None if something else stopped it."""

    holds: bool
    findings: tuple[Finding, ...] = ()
    failure: Failure | None = None
    kernels: tuple[str, ...] = ()


def prove_target(description: TargetDescription, record: Path) -> Proof:
    """Whether the checkpoint that is about to be loaded is the one that was described, tokenized for and
    checked."""
    try:
        require_described(description, record)
    except InputError as error:
        return Proof(False, failure=describe_situation(InputError, str(error)))
    return Proof(True)


def prove_devices(
    description: TargetDescription, extraction: Extraction, compatibility: Compatibility
) -> Proof:
    """Whether this job's devices are enough and hold the target. Where compatibility was checked, there may
    have been none."""
    found = check_devices(description, extraction, compatibility)
    for finding in found.findings:
        say(f"{_describe(finding)}; {finding.remedy}")
    if not found.failed:
        return Proof(True)
    return Proof(
        False,
        failure=_failure(
            "the target does not fit this job's devices, so it was not loaded",
            found.findings,
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
    if passed := PassedCanary.find(verdict):
        say("\n  ".join([f"canary: passed before ({verdict})", *map(_describe, passed.findings)]))
        return Proof(True, passed.findings, kernels=tuple(passed.kernels))
    say("canary: extracting from a tiny model of the target's architecture first")
    failed_verdict = verdict.with_suffix(".failed.json")
    failed_verdict.unlink(missing_ok=True)  # an earlier attempt's words are not this one's
    log_start, started = log.stat().st_size if log.exists() else 0, time.monotonic()
    options = {
        "--settings": json.dumps(asdict(settings)),
        "--work": str(work),
        "--log": str(log),
        "--output": str(verdict),
    }
    child = Child(
        "run_canary", [*(part for option in options.items() for part in option), "--allow", *allowed], log
    )
    weights = sorted(Path(settings.model_path).glob("*.safetensors"))
    try:
        with reading_ahead(weights, "the target's weights"):
            while child.process.poll() is None and not stop.wait(0.2):
                pass
    finally:
        child.kill()
    if passed := PassedCanary.find(verdict):
        passed = replace(passed, kernels=reported_kernels(log, log_start), environment=shown_variables())
        passed.write(verdict)
        took = f"canary: passed in {time.monotonic() - started:.1f} s"
        say("\n  ".join([took, *map(_describe, passed.findings)]))
        return Proof(not stop.is_set(), passed.findings, kernels=tuple(passed.kernels))
    if stop.is_set():
        return Proof(False)
    failed = Findings.find(failed_verdict) or Findings((_died(child.end(), log, log_start),))
    failure = _failure(
        f"the canary failed, so the target was not loaded; engine output: {log}", failed.findings
    )
    say(failure.render())
    return Proof(False, failed.findings, failure)


def _died(how: str, log: Path, log_start: int) -> Finding:
    """The finding of a canary that ended without one: how it ended, and what its log says of the cause."""
    failure = with_root_cause(
        describe_situation(EngineError, f"the canary process {how}"), log, start=log_start
    )
    return Finding(
        "canary-died",
        "fail",
        f"{failure.message} before it could judge; {'; '.join(failure.causes)}",
        remedy=failure.remedy or f"see {log}",
    )


def kernels_not_covered(proof: Proof, kernels: Iterable[str]) -> list[Finding]:
    """A finding where the target runs with what the canary did not run with; none where no canary ran."""
    other = [kernel for kernel in kernels if kernel not in proof.kernels]
    if not proof.kernels or not other:
        return []
    title = f"the target uses kernels that the canary did not cover: {'; '.join(other)}"
    remedy = "none if validation passes, but it proves only the last layer's state of each sample"
    finding = Finding("canary-kernels", "unknown", title, remedy=remedy)
    say(_describe(finding))
    return [finding]


def _identity(settings: EngineSettings, allowed: list[str]) -> str:
    """Of all that the canary's verdict depends on. The paths of the target and its states are not part of
    it."""
    code = [
        hash_bytes(path.read_bytes())
        for room in (CANARY_CODE, ENGINES_CODE)
        for path in sorted(room.rglob("*.py"))
    ]
    return hash_json(
        {
            **asdict(settings),
            "model_path": "",
            "states_root": "",
            "allow": allowed,
            "packages": kernel_packages(),
            "variables": vllm_variables(),
            "machine": machine(),
            "code": code,
        }
    )


def _failure(message: str, findings: Iterable[Finding]) -> Failure:
    return describe_situation(CompatibilityError, message, causes=tuple(describe_failures(findings)))


def _describe(finding: Finding) -> str:
    accepted = " (accepted)" if finding.accepted else ""
    return f"{finding.level}{accepted}: {finding.id}: {finding.title}"
