"""The report of a check as text for a terminal or a log. The JSON is the findings' own record."""

from __future__ import annotations

import textwrap

from eagle3_data.compatibility.findings import Finding, Findings

WIDTH = 118
WORDS = {"fail": "FAIL", "warn": "WARN", "unknown": "?"}
PHRASES = {"fail": "failing", "warn": "to watch", "unknown": "not to be judged from source"}


def render(result: Findings, title: str) -> str:
    """Readable text: what was looked at, the findings worst first, the verdict and the time it took."""
    lines = [title, *(f"  {name}: {value}" for name, value in result.subject.items())]
    for finding in result.findings:
        lines += ["", *_finding(finding)]
    return "\n".join([*lines, "", verdict(result)])


def verdict(result: Findings) -> str:
    """One line: pass or fail, how many of which level, seconds."""
    open_levels = [finding.level for finding in result.findings if not finding.accepted]
    parts = [f"{open_levels.count(level)} {phrase}" for level, phrase in PHRASES.items() if level in open_levels]
    if accepted := sum(finding.accepted for finding in result.findings):
        parts.append(f"{accepted} accepted")
    return f"{'FAIL' if result.failed else 'PASS'} in {result.elapsed_s:.1f} s: {', '.join(parts) or 'nothing found'}"


def _finding(finding: Finding) -> list[str]:
    word = f"{WORDS[finding.level]:5}" + ("(accepted) " if finding.accepted else "")
    lines = textwrap.wrap(f"{word}{finding.id}: {finding.title}", WIDTH, subsequent_indent=" " * 5)
    details = (("at", finding.client_location), ("vLLM", finding.vllm_location), ("since", finding.since), ("do", finding.remedy))
    for name, value in details:
        if value:
            lines += textwrap.wrap(f"     {name:>5}: {value}", WIDTH, subsequent_indent=" " * 12)
    return lines
