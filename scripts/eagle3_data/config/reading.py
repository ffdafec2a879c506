"""Reads and validates a configuration, and hands it on to the rules.

The Snakefile validates the whole configuration once and hands each rule a file with the sections that it
reads, named after their content: a changed key then re-runs the rules that read it and no others, and a run
that is queued keeps the configuration it was started with. By hand, scripts take any config file.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ValidationError,
)

from eagle3_data.config.section import Section
from eagle3_data.config.sections import Config
from eagle3_data.errors import ConfigError
from eagle3_data.hashing import hash_json
from eagle3_data.records import JsonObject, find_json, write_json
from eagle3_data.system.modes import PRIVATE_UMASK

AnySection = TypeVar("AnySection", bound=Section)


def validate(cls: type[AnySection], values: Any, place: str = "config") -> AnySection:
    """`values` as a `cls`. Raises ConfigError naming each wrong key, its place, and the nearest known key."""
    try:
        return cls.model_validate(values)
    except ValidationError as error:
        problems = error.errors()
        places = [problem["loc"] for problem in problems]
        # a list whose only item is wrong is reported as too short, too
        shown = [
            p
            for p in problems
            if p["type"] != "too_short" or not any(loc[: len(p["loc"])] == p["loc"] != loc for loc in places)
        ]
        raise ConfigError(
            f"{place} is not valid:\n" + "\n".join(_explain(cls, problem) for problem in shown)
        ) from None


def _explain(cls: type[BaseModel], problem: Any) -> str:
    where = ".".join(str(part) for part in problem["loc"]) or "(top level)"
    if problem["type"] != "extra_forbidden":
        given = "" if problem["type"] in ("missing", "value_error") else f" (given: {problem['input']!r})"
        return f"  {where}: {problem['msg'].removeprefix('Value error, ')}{given}"
    known = list(_fields_at(cls, problem["loc"][:-1]))
    near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1)
    return f"  {where}: unknown key; " + (
        f"did you mean `{near[0]}`?" if near else f"known keys: {', '.join(known)}"
    )


def _fields_at(cls: type[BaseModel], location: tuple[str | int, ...]) -> JsonObject:
    for part in location:
        if isinstance(part, str) and part in cls.model_fields:
            annotation = cls.model_fields[part].annotation
            cls = next(
                (
                    t
                    for t in (annotation, *getattr(annotation, "__args__", ()))
                    if isinstance(t, type) and issubclass(t, BaseModel)
                ),
                cls,
            )
    return dict(cls.model_fields)


def load_config(values: Mapping[str, Any]) -> Config:
    """Validate what Snakemake merged from config files and `--config`. Raises ConfigError.

    What is returned has gone through JSON, as what the scripts read has: both see the same values, types
    included.
    """
    return Config.model_validate(json.loads(_as_json(validate(Config, values))))


def _as_json(section: Section) -> str:
    return json.dumps(section.model_dump(mode="json"))


def write_sections(config: Config, directory: Path, *names: str) -> Path:
    """Write the named sections as one file in `directory`, unless it is there; its name says which sections,
    and tells one content from another."""
    sections = {name: json.loads(_as_json(getattr(config, name))) for name in names}
    path = directory / f"{'-'.join(names)}-{hash_json(sections)[:16]}.json"
    if find_json(path) is None:
        write_json(path, sections)
    return path


def write_whole(config: Config, path: Path) -> None:
    """Write the whole configuration, defaults included, where it has changed: a record, of which no rule's
    work depends."""
    whole = json.loads(_as_json(config))
    if {**(find_json(path) or {}), "format_version": None} != {**whole, "format_version": None}:
        write_json(path, whole)


def load_section(path: str | Path, name: str, cls: type[AnySection]) -> AnySection:
    """Section `name` of a config file: YAML or JSON, written by hand or by `write_sections`."""
    values = read_config_file(path)
    if values.get("private") is True:  # a whole file, for a script that is run by hand
        os.umask(PRIVATE_UMASK)
    return validate(cls, values.get(name, {}), f"section `{name}` of {path}")


def read_config_file(path: str | Path) -> JsonObject:
    """The content of a config file, JSON or YAML. Raises ConfigError where it cannot be read, is not a
    mapping, or gives a key twice, of which only the last would count."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        try:
            values = json.loads(text, object_pairs_hook=_pairs)
        except json.JSONDecodeError:
            values = yaml.load(text, _Loader)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except RecursionError:
        raise ConfigError(f"{path} is nested too deeply to be read") from None
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML or JSON") from error
    except _TwiceError as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping of sections")
    return values


class _TwiceError(Exception):
    """A key is given twice in one mapping."""


def _pairs(pairs: list[tuple[str, Any]]) -> JsonObject:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise _TwiceError(f"the key `{name}` is given twice; keep one of them")
    return dict(pairs)


class _Loader(yaml.SafeLoader):
    """YAML as Snakemake reads it, but for a key given twice: that is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line = key.start_mark.line + 1
            if isinstance(key, yaml.ScalarNode) and lines.setdefault(key.value, line) != line:
                raise _TwiceError(
                    f"the key `{key.value}` is given twice, in line {lines[key.value]} and line {line};"
                    " keep one of them"
                )
        return super().construct_mapping(node, deep)
