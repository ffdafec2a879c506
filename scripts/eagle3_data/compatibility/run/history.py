"""When a finding appeared and where it is gone: the same question asked of several releases. Standard library
only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from eagle3_data.compatibility.run.static import Question, check_tree
from eagle3_data.compatibility.source.client import Client
from eagle3_data.compatibility.source.source_tree import SourceTree
from eagle3_data.findings import Finding, Findings
from eagle3_data.text import table


@dataclass(frozen=True)
class Release:
    """A version and what was found in it."""

    version: str
    findings: tuple[Finding, ...]

    def shows(self, finding: Finding) -> bool:
        return any((other.id, other.title) == (finding.id, finding.title) for other in self.findings)


def version_key(version: str) -> tuple[int, ...]:
    """The numbers of a version, for sorting releases."""
    return tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0]))


def look_back(trees: Iterable[SourceTree], question: Question) -> list[Release]:
    """The releases in ascending order of version."""
    releases = [Release(tree.version, check_tree(tree, question)) for tree in trees]
    return sorted(releases, key=lambda release: version_key(release.version))


def with_history(
    findings: Sequence[Finding], version: str, releases: Sequence[Release]
) -> tuple[Finding, ...]:
    """The findings of `version` with `since` filled in, and the release from which on they are gone in the
    remedy."""
    older = [release for release in releases if version_key(release.version) < version_key(version)]
    newer = [release for release in releases if version_key(release.version) > version_key(version)]
    return tuple(_dated(finding, version, older, newer) for finding in findings)


def _dated(finding: Finding, version: str, older: Sequence[Release], newer: Sequence[Release]) -> Finding:
    since = version
    for release in reversed(older):
        if not release.shows(finding):
            break
        since = release.version
    if older and since == older[0].version:
        since = f"{since} or earlier"
    gone = next((release.version for release in newer if not release.shows(finding)), None)
    remedy = finding.remedy + (f" (gone in {gone})" if gone else "")
    return replace(finding, since=since, remedy=remedy)


@dataclass(frozen=True)
class Cell:
    """One client on one vLLM."""

    client: str
    version: str
    result: Findings

    def as_record(self) -> dict[str, object]:
        return {"client": self.client, "vllm": self.version, **self.result.to_json()}

    @property
    def word(self) -> str:
        """`pass`, or the failing ids."""
        return ", ".join(dict.fromkeys(f.id for f in self.result.findings if f.level == "fail")) or "pass"


def matrix(clients: Sequence[Client], trees: Sequence[SourceTree], question: Question) -> list[Cell]:
    """Every client on every tree; without clients, vLLM's own extraction on every tree."""
    cells = []
    for tree in trees:
        for client in clients or (None,):
            asked = replace(question, clients=(client,) if client else ())
            cells.append(
                Cell(
                    client.label if client else "extract_hidden_states",
                    tree.version,
                    Findings(check_tree(tree, asked)),
                )
            )
    return cells


def render_matrix(cells: Sequence[Cell]) -> str:
    """Versions down, clients across."""
    clients = list(dict.fromkeys(cell.client for cell in cells))
    versions = list(dict.fromkeys(cell.version for cell in cells))
    words = {(cell.client, cell.version): cell.word for cell in cells}
    rows = [
        ["vLLM", *clients],
        *([version, *(words[client, version] for client in clients)] for version in versions),
    ]
    return table(rows)
