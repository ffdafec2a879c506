"""Layer ids: one convention everywhere, vLLM's. Id k is the residual stream after k decoder layers; 0 the
embeddings; L, the number of decoder layers, the state after the last layer and before the final norm. Other
conventions are translated here and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

from eagle3_data.errors import ConfigError

OFFSETS = {"vllm": 0, "speculators-0.3": 1}
"""What is added to an id of each convention. speculators up to 0.4 counts "after the layer of index k"."""


def default_layers(num_hidden_layers: int) -> tuple[int, ...]:
    """EAGLE-3's auxiliary layers 2, L//2, L-3 and the last layer L (speculators 0.9, SpecForge)."""
    return (2, num_hidden_layers // 2, num_hidden_layers - 3, num_hidden_layers)


def layer_problems(layers: Sequence[int], num_hidden_layers: int | None) -> list[tuple[str, str]]:
    """What is wrong with layer ids in vLLM's convention, as (finding id, message); empty if nothing is.

    `num_hidden_layers` None: of a model that is not known, so only what is wrong for every model.
    """
    problems = []
    if repeated := sorted({k for k in layers if list(layers).count(k) > 1}):
        problems.append(
            (
                "duplicate-layer",
                (
                    f"layer id {', '.join(map(str, repeated))} is given twice; vLLM captures each layer once"
                    " and crashes in the first forward pass"
                ),
            )
        )
    if num_hidden_layers is None:
        if negative := sorted({k for k in layers if k < 0}):
            problems.append(
                ("layer-out-of-range", f"layer id {', '.join(map(str, negative))} is below 0, the embeddings")
            )
    elif outside := sorted({k for k in layers if not 0 <= k <= num_hidden_layers}):
        problems.append(
            (
                "layer-out-of-range",
                (
                    f"layer id {', '.join(map(str, outside))} is outside 0..{num_hidden_layers} (the model"
                    f" has {num_hidden_layers} decoder layers)"
                ),
            )
        )
    if list(layers) != sorted(layers):
        problems.append(
            (
                "layers-not-ascending",
                ("vLLM always returns states in ascending order of layer id; list the ids in that order"),
            )
        )
    if num_hidden_layers is not None and num_hidden_layers not in layers:
        problems.append(
            (
                "last-layer-missing",
                (
                    "trainers compute the targets from the last slot, so the ids must include the last"
                    f" layer, {num_hidden_layers}"
                ),
            )
        )
    return problems


def resolve_layers(
    requested: Sequence[int] | None, convention: str, num_hidden_layers: int
) -> tuple[int, ...]:
    """The layer ids in vLLM's convention; `requested` None means the default.

    Raises ConfigError naming every problem. Source: the capture loops of vLLM's model classes and of
    speculators 0.3.
    """
    layers = (
        default_layers(num_hidden_layers)
        if requested is None
        else tuple(k + OFFSETS[convention] for k in requested)
    )
    if problems := layer_problems(layers, num_hidden_layers):
        message = f"layers {list(layers)} of a {num_hidden_layers}-layer model (vLLM's convention):"
        hint = (
            ""
            if requested is not None
            else (
                "\n  the model is too shallow for the default layers; set extraction.layers, such as"
                f" {[min(1, num_hidden_layers - 1), num_hidden_layers]}"
            )
        )
        raise ConfigError(message + "".join(f"\n  {name}: {message}" for name, message in problems) + hint)
    return layers
