"""What every section of the configuration has in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, ser_json_inf_nan="constants"
    )


def _numbers_from_text(value: Any) -> Any:
    """`1e-5` as the number it is: YAML 1.1, which Snakemake reads, takes it as text (it wants `1.0e-5`)."""
    if isinstance(value, Mapping):
        return {key: _numbers_from_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_from_text(item) for item in value]
    return float(value) if isinstance(value, str) and EXPONENT_NUMBER.fullmatch(value) else value


EXPONENT_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
AnyArguments = Annotated[dict[str, Any], BeforeValidator(_numbers_from_text)]
"""Arguments passed to a library unchanged."""
