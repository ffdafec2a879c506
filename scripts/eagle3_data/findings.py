"""The findings of a check: each fails, may fail or is unknown, and has its places in client and vLLM, the
first affected version and a remedy. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from eagle3_data.records import JsonObject, Record

Level = Literal["fail", "warn", "unknown"]

LEVELS: tuple[Level, ...] = ("fail", "warn", "unknown")
IDS = frozenset({
    "abstract-not-implemented", "architecture-unregistered", "architecture-unresolved", "argument-order",
    "await-misfit", "cache-layout", "canary-all-zero", "canary-batch", "canary-chunk", "canary-constant",
    "canary-count", "canary-coverage", "canary-died", "canary-engine-start", "canary-extraction",
    "canary-greedy-token", "canary-kernels", "canary-layer", "canary-not-built", "canary-not-finite",
    "canary-parity", "canary-post-norm", "canary-quantization", "canary-reference", "canary-write",
    "canary-wrong-dtype", "canary-wrong-shape", "canary-wrong-token-ids", "capture-transformed",
    "capture-unknown", "client-unparsable", "demo-value", "device-memory-short", "devices-idle",
    "devices-too-few", "discarded-result", "disk-short", "disk-tight", "duplicate-layer",
    "engine-unknown", "eos-disagrees", "every-rank-writes", "experts-do-not-divide",
    "greedy-token-unknown", "heads-do-not-divide", "hybrid-page-too-small", "hybrid-states-wrong",
    "ignored-key", "last-layer-missing", "layer-argument-left-out", "layer-not-captured",
    "layer-out-of-range", "layer-shifted", "layers-not-ascending", "missing-argument",
    "missing-model-attribute", "missing-model-method", "missing-module", "missing-name",
    "model-type-refused", "module-not-importable", "no-chat-template", "no-connector",
    "no-extraction-method", "no-lock-wait", "not-eagle3", "override-misfit", "patch-unknown",
    "pipeline-loses-states", "remote-code-needed", "special-token-split", "states-copied",
    "store-unusable", "template-drops-text", "template-fails", "token-beyond-vocabulary",
    "token-id-without-token", "token-ids-disagree", "tokenizer-not-compared", "tokenizer-unusable",
    "tokenizers-disagree", "too-long", "transformers-unusable", "turn-end-not-eos", "two-vllms",
    "unexpected-argument", "unknown-configuration-key", "unknown-engine-argument", "unpack-misfit",
    "unsafe-chunked-prefill", "unsafe-prefix-caching", "version-out-of-range", "vllm-not-installed",
    "vllm-too-old", "vllm-version-unknown",
})  # fmt: skip
"""Every id that a check or the canary may give: what `compatibility.allow` may name."""


@dataclass(frozen=True)
class Finding(Record):
    """One thing that will fail, may fail, or could not be judged.

    `id` is a stable short name of the kind of fault, so that it can be accepted in the configuration and
    looked up. `client_location` and `vllm_location` are `file:line` relative to the root of their source
    tree, or empty where a side has no part in the fault; `since` is the first version of vLLM that shows it,
    where a history was looked at.
    """

    id: str
    level: Level
    title: str
    client_location: str = ""
    vllm_location: str = ""
    since: str = ""
    remedy: str = ""
    accepted: bool = False


@dataclass(frozen=True)
class Findings(Record):
    """The result of a check: what was looked at, what was found, and how long it took."""

    findings: tuple[Finding, ...]
    subject: JsonObject = field(default_factory=dict)
    elapsed_s: float = 0.0

    @property
    def failed(self) -> bool:
        return any(finding.level == "fail" and not finding.accepted for finding in self.findings)

    def to_json(self) -> JsonObject:
        verdict = "fail" if self.failed else "pass"
        return {**super().to_json(), "verdict": verdict, "elapsed_s": round(self.elapsed_s, 3)}


def accept(findings: Iterable[Finding], allowed: Iterable[str]) -> tuple[Finding, ...]:
    """The findings, those whose id the user allows marked accepted. They stay in the report but do not fail
    it."""
    allowed = frozenset(allowed)
    return tuple(replace(finding, accepted=finding.id in allowed) for finding in findings)


def describe_failures(findings: Iterable[Finding]) -> list[str]:
    """What fails and was not accepted: id, title and remedy in one line each."""
    failing = (finding for finding in findings if finding.level == "fail" and not finding.accepted)
    return ["; ".join(filter(None, (f"{one.id}: {one.title}", one.remedy))) for one in failing]


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each finding once, worst first; within a level in the order of discovery."""
    return tuple(sorted(dict.fromkeys(findings), key=lambda finding: LEVELS.index(finding.level)))
