"""Which turns the data itself excludes from training. Standard library only.

OpenAI's fine-tuning format has `weight`, SlimOrca and OpenChat too; axolotl has `train`, `training` and
`train_detail`; XTuner and ms-swift have `loss`, verl `loss_mask`; others write `trainable` or `masked`.
"""

from __future__ import annotations

from typing import Any

from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.rows import BadRowError

WANTED = (
    *("weight", "train", "training", "trainable", "loss", "loss_mask", "train_on_turn"),
    *("calculate_loss", "compute_loss"),
)
"""Fields of a turn that are false, or 0, where it is not to be trained."""

UNWANTED = ("mask", "masked", "no_loss", "ignore_loss")
"""Fields of a turn that are true where it is not to be trained."""

DETAIL = "train_detail"
"""Parts of a turn's text, each with a flag `train`."""

FLAGS = frozenset((*WANTED, *UNWANTED, DETAIL))
WORDS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False, "": None}


def training_flag(turn: JsonObject) -> bool | None:
    """Whether the turn is to be trained, None if it has no flag. Raises BadRowError for an invalid flag.

    A turn of which a part is not to be trained is not trained at all.
    """
    present = turn.keys() & FLAGS
    if not present:
        return None
    flags = {_flag(turn[name], name) for name in present if name in WANTED}
    flags |= {
        not flag for name in present if name in UNWANTED and (flag := _flag(turn[name], name)) is not None
    }
    if turn.get(DETAIL):
        flags.add(all(_flag(part, DETAIL) is not False for part in _parts(turn[DETAIL])))
    flags.discard(None)
    return None if not flags else False not in flags


def _flag(value: Any, name: str) -> bool | None:
    """A flag written as a truth value, a number or a word; None for null."""
    if value is None or isinstance(value, (bool, int, float)):
        return None if value is None else bool(value)
    if isinstance(value, str) and value.strip().lower() in WORDS:
        return WORDS[value.strip().lower()]
    raise BadRowError(f"has {name!r} of type {type(value).__name__}; expected true or false")


def _parts(detail: Any) -> list[Any]:
    if not isinstance(detail, list) or not all(isinstance(part, dict) for part in detail):
        raise BadRowError(f"has {DETAIL!r} that is not a list of objects")
    return [part.get("train") for part in detail]
