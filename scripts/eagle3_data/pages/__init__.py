"""Pages for people: the jinja templates here. style.css goes into each page, so that a page is one file.

Every text is escaped: conversations, checkpoints and logs quote strangers.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

FOLDER = Path(__file__).parent


def render_page(template: str, **values: object) -> str:
    """The page `template` (a file name of this folder) as HTML."""
    environment = Environment(
        loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(**values)
