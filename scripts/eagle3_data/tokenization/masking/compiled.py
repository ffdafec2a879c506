"""A chat template compiled once, as `transformers` compiles it.

What templates spend most time on is made short. A message has keys, not attributes, and of Jinja's own loops
and namespaces its sandbox guards only what begins with an underscore. Whether it lets another attribute be
read depends only on its name and the type of its owner. Indented JSON, which Python writes slowly, is that of
the tools nearly always: the same for many conversations.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from jinja2 import Template
from jinja2.runtime import LoopContext
from jinja2.utils import Namespace
from transformers.utils.chat_template_utils import _cached_compile_jinja_template

MOST_REMEMBERED = 10_000
"""Attributes: a template may read some by names that the data gives."""

DICT_ATTRIBUTES = frozenset(dir(dict))

JSON_TEXTS, MOST_JSON_CHARACTERS = 256, 1 << 16
"""How many indented texts are remembered, and how long they may be on one line."""


@lru_cache
def compile_template(source: str) -> Template:
    """The compiled template, of which `render` takes `messages`, `tools` and the other variables. Raises
    TemplateSyntaxError."""
    template: Template = _cached_compile_jinja_template(source)  # despite its name it remembers nothing
    environment: Any = template.environment
    environment.getattr = _reading_directly(environment.getattr, environment.undefined)
    environment.is_safe_attribute = _remembered(environment.is_safe_attribute)
    environment.filters["tojson"] = _remembering_json(environment.filters["tojson"])
    return template


def _reading_directly(
    read: Callable[[Any, str], Any], undefined: Callable[..., Any]
) -> Callable[[Any, str], Any]:
    """The same values as Jinja's `getattr`, which tries a message's attributes before its keys and asks the
    sandbox each time."""
    absent: dict[str, Any] = {}

    def get(owner: Any, name: str) -> Any:
        kind = type(owner)
        if kind is dict and name not in DICT_ATTRIBUTES:
            if name in owner:
                return owner[name]
            if name not in absent:  # a template has few names
                absent[name] = undefined(obj={}, name=name)
            return absent[name]
        if (kind is LoopContext or kind is Namespace) and name[0] != "_":
            try:
                return getattr(owner, name)
            except AttributeError:
                pass
        return read(owner, name)

    return get


def _remembered(is_safe: Callable[[Any, str, Any], bool]) -> Callable[[Any, str, Any], bool]:
    """The same answers as Jinja's `is_safe_attribute`, each asked for once."""
    known: dict[tuple[type, str], bool] = {}

    def is_safe_attribute(owner: Any, name: str, value: Any) -> bool:
        key = type(owner), name
        safe = known.get(key)
        if safe is None:
            safe = is_safe(owner, name, value)
            if len(known) < MOST_REMEMBERED:
                known[key] = safe
        return safe

    return is_safe_attribute


def _remembering_json(to_json: Callable[..., str]) -> Callable[..., str]:
    """The same texts as those of `to_json`, the filter of transformers; of those with indentation each is
    written once."""
    known: dict[tuple[str, str], str] = {}

    def tojson(value: Any, *positional: Any, **options: Any) -> str:
        if positional or options.get("indent") is None:
            return to_json(value, *positional, **options)
        # on one line it is written in C, and says all that the indented text does, in the same order
        line = to_json(value, sort_keys=options.get("sort_keys", False))
        if len(line) > MOST_JSON_CHARACTERS:
            return to_json(value, **options)
        key = line, repr(sorted(options.items()))
        if key not in known:
            if len(known) == JSON_TEXTS:
                known.clear()
            known[key] = to_json(value, **options)
        return known[key]

    return tojson
