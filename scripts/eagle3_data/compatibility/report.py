"""The report of a check as text for a terminal or a log, and as a page. The JSON is the findings' own record."""

from __future__ import annotations

import textwrap

from jinja2 import Environment

from eagle3_data.compatibility.findings import Finding, Findings

WIDTH = 118
WORDS = {"fail": "FAIL", "warn": "WARN", "unknown": "?"}
PHRASES = {"fail": "failing", "warn": "to watch", "unknown": "not to be judged from source"}


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff }
article { border-left: 4px solid #aaa; padding: .2rem 1rem; margin: 1rem 0 } article.fail { border-color: #c0392b } article.warn { border-color: #d99a00 }
h2 { font-size: 1rem; margin: 0 } p { margin: .2rem 0 } dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; margin: .2rem 0 }
dt { color: #666 } dd { margin: 0; overflow-wrap: anywhere }
</style></head><body>
<h1>{{ title }}</h1>
<p><strong>{{ verdict }}</strong></p>
<dl>{% for name, value in subject.items() %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
{% for finding in findings %}
<article class="{{ finding.level }}">
<h2>{{ words[finding.level] }} {{ "(accepted) " if finding.accepted }}{{ finding.id }}</h2>
<p>{{ finding.title }}</p>
<dl>{% for name, value in details(finding) if value %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}</dl>
</article>
{% endfor %}
</body></html>
"""


def render(result: Findings, title: str) -> str:
    """Readable text: what was looked at, the findings worst first, the verdict and the time it took."""
    lines = [title, *(f"  {name}: {value}" for name, value in result.subject.items())]
    for finding in result.findings:
        lines += ["", *_finding(finding)]
    return "\n".join([*lines, "", verdict(result)])


def render_html(result: Findings, title: str) -> str:
    """The same as a page of its own; every text is escaped, since titles quote what checkpoints and logs say."""
    page = Environment(autoescape=True).from_string(PAGE)
    return page.render(title=title, verdict=verdict(result), subject=result.subject, findings=result.findings, words=WORDS, details=_details)


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
    for name, value in _details(finding):
        if value:
            lines += textwrap.wrap(f"     {name:>5}: {value}", WIDTH, subsequent_indent=" " * 12)
    return lines


def _details(finding: Finding) -> tuple[tuple[str, str], ...]:
    return (("at", finding.client_location), ("vLLM", finding.vllm_location), ("since", finding.since), ("do", finding.remedy))
