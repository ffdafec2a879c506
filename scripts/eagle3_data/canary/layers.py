"""Which of the target's layers the canary keeps, so that a layer of every kind runs, and its config.json cut
to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from eagle3_data.engines.language_model import decoder_layers
from eagle3_data.records import JsonObject

Kind = tuple[Any, ...]
"""Identifies the kind of a layer; equal for layers that differ only in their weights."""
MAX_KINDS = 8
LEADING = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index", "max_window_layers")
"""Names in config.json of how many layers, the first ones, are of some kind."""
TRAILING = ("num_kv_shared_layers",)
"""The same of the last ones."""


def layer_kinds(model: Any) -> list[Kind]:
    """The kind of each decoder layer of a model of transformers: its modules, how they are switched, and what
    config.json lists for it."""
    layers = decoder_layers(model)
    lists = listed_by_layer(model.config.get_text_config(decoder=True), len(layers))
    return [
        (*_structure(layer), *((name, value[n]) for name, value in lists.items()))
        for n, layer in enumerate(layers)
    ]


def listed_by_layer(config: Any, layers: int) -> dict[str, list[Any]]:
    """What a configuration of transformers lists by layer, its defaults worked out: kinds of layers."""
    return {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, list)
        and len(value) == layers
        and all(isinstance(one, str | int) for one in value)
        and not _are_layer_numbers(value)
    }


def _structure(layer: nn.Module) -> list[tuple[Any, ...]]:
    return [
        (name, type(module).__name__, *sorted(_switches(module).items()))
        for name, module in layer.named_modules()
        if not re.search(r"\.\d+(\.|$)", name)  # experts: as many as there are
    ]


def _switches(module: nn.Module) -> dict[str, str]:
    return {
        name: str(value is not None if "window" in name else value)
        for name, value in vars(module).items()
        if (isinstance(value, bool | str) or "window" in name) and name != "training" and name[0] != "_"
    }


def choose_layers(kinds: Sequence[Kind], count: int) -> tuple[int, ...]:
    """`count` layers, or as many as there are kinds: the first of each kind, then more of the most frequent
    one. Where that is too many, the kinds that most layers are of."""
    often = Counter(kinds)
    first = sorted(often, key=lambda kind: (-often[kind], kinds.index(kind)))[: min(MAX_KINDS, count)]
    kept = [kinds.index(kind) for kind in first]
    more = [n for n, kind in enumerate(kinds) if kind == first[0] and n not in kept]
    rest = [n for n in range(len(kinds)) if n not in kept and n not in more]
    return tuple(sorted([*kept, *more, *rest][: min(count, len(kinds))]))


def cut_layers(text: JsonObject, kept: Sequence[int]) -> JsonObject:
    """A language model's config.json with only the layers `kept`, in all that speaks of layers by number."""
    count = text["num_hidden_layers"]
    small = {name: _cut(name, value, count, kept, 0) for name, value in text.items()}
    small |= {name: sum(n < text[name] for n in kept) for name in LEADING if isinstance(text.get(name), int)}
    small |= {
        name: sum(n >= count - text[name] for n in kept)
        for name in TRAILING
        if isinstance(text.get(name), int)
    }
    return small | {"num_hidden_layers": len(kept)}


def _cut(name: str, value: Any, count: int, kept: Sequence[int], base: int) -> Any:
    """`value` in terms of the layers `kept` of `count`; numbers of layers in it start at `base`."""
    if isinstance(value, list) and _are_layer_numbers(value) and re.search("layer|idx|indices", name):
        return [place + base for place, n in enumerate(kept) if n + base in value]
    if isinstance(value, list) and len(value) == count:  # an entry a layer
        return [value[n] for n in kept]
    if isinstance(value, str) and len(value) == count and "pattern" in name:  # a letter a layer
        return "".join(value[n] for n in kept)
    if isinstance(value, dict) and value and all(str(key).isdigit() for key in value):  # by number of layer
        return {str(place): value[str(n)] for place, n in enumerate(kept) if str(n) in value}
    if isinstance(value, dict):
        lists = [one for key, one in value.items() if "layer" in key and isinstance(one, list)]
        from_one = any(count in one for one in lists)  # Kimi-Linear counts from 1
        return {key: _cut(key, one, count, kept, int(from_one)) for key, one in value.items()}
    return value


def _are_layer_numbers(values: list[Any]) -> bool:
    """Whole numbers, each larger than the one before."""
    numbers = all(isinstance(one, int) and not isinstance(one, bool) for one in values)
    return numbers and all(one < other for one, other in pairwise(values))
