"""The report of a check as a table on a terminal, as plain text in a log, and as a page. The JSON is the
findings' own record."""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

from eagle3_data.findings import Finding, Findings
from eagle3_data.log import say
from eagle3_data.pages import render_page

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 118
WORDS = {"fail": "FAIL", "warn": "WARN", "unknown": "?"}
COLOURS = {"fail": "bold red", "warn": "yellow", "unknown": "cyan"}
PHRASES = {"fail": "failing", "warn": "to watch", "unknown": "not clear from source"}


def show(result: Findings, title: str) -> None:
    """The report on stderr: a table where that is a terminal, else plain text, for a log is searched and
    quoted."""
    if not sys.stderr.isatty():
        say(render(result, title))
        return
    from rich.console import Console  # a tenth of a second that a log need not pay

    print_table(Console(stderr=True), result, title)


def print_table(console: Console, result: Findings, title: str) -> None:
    """What was looked at, a row a finding, the verdict. All texts are shown literally, even if they look
    like markup."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    console.print(Text(title, "bold"))
    for name, value in result.subject.items():
        console.print(Text.assemble((f"  {name}: ", "dim"), str(value)))
    if result.findings:
        table = Table("", "finding", "what, where, and what to do", box=SIMPLE_HEAD, show_lines=True)
        for finding in result.findings:
            colour = "green" if finding.accepted else COLOURS[finding.level]
            details = [
                Text.assemble((f"\n{name}: ", "dim"), value) for name, value in _details(finding) if value
            ]
            word = WORDS[finding.level] + (" (accepted)" if finding.accepted else "")
            table.add_row(
                Text(word, colour), Text(finding.id, colour), Text.assemble(finding.title, *details), style=""
            )
        console.print(table)
    console.print(Text(verdict(result), "bold red" if result.failed else "bold green"))


def render(result: Findings, title: str) -> str:
    """Readable text: what was looked at, the findings worst first, the verdict and the time it took."""
    lines = [title, *(f"  {name}: {value}" for name, value in result.subject.items())]
    for finding in result.findings:
        lines += ["", *_finding(finding)]
    return "\n".join([*lines, "", verdict(result)])


def render_html(result: Findings, title: str) -> str:
    """The same as a page of its own; every text is escaped, since titles quote what checkpoints and logs
    say."""
    return render_page(
        "findings.html.jinja",
        title=title,
        verdict=verdict(result),
        subject=result.subject,
        findings=result.findings,
        words=WORDS,
        details=_details,
    )


def verdict(result: Findings) -> str:
    """One line: pass or fail, how many of which level, seconds."""
    open_levels = [finding.level for finding in result.findings if not finding.accepted]
    parts = [
        f"{open_levels.count(level)} {phrase}" for level, phrase in PHRASES.items() if level in open_levels
    ]
    if accepted := sum(finding.accepted for finding in result.findings):
        parts.append(f"{accepted} accepted")
    return (
        f"{'FAIL' if result.failed else 'PASS'} in {result.elapsed_s:.1f} s:"
        f" {', '.join(parts) or 'nothing found'}"
    )


def _finding(finding: Finding) -> list[str]:
    word = f"{WORDS[finding.level]:5}" + ("(accepted) " if finding.accepted else "")
    lines = _wrap(f"{word}{finding.id}: {finding.title}", 5)
    for name, value in _details(finding):
        if value:
            lines += _wrap(f"     {name:>5}: {value}", 12)
    return lines


def _wrap(text: str, indent: int) -> list[str]:
    """Lines of at most WIDTH characters, but no path or name is broken."""
    return textwrap.wrap(
        text, WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _details(finding: Finding) -> tuple[tuple[str, str], ...]:
    return (
        ("at", finding.client_location),
        ("vLLM", finding.vllm_location),
        ("since", finding.since),
        ("do", finding.remedy),
    )
