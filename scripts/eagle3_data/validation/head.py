"""From the last stored state to the logits, as transformers' own class of the target's architecture computes
them.

The model is built without memory for weights; only what it computes after its last decoder layer gets its
weights from the checkpoint: the final norm and lm_head, or the embedding where the two are tied. The stored
states take the place of the decoder layers. So the kind of norm, its biases, scaled and capped logits are the
architecture's, not a formula of ours.

With it the last stored state of a sample must give the greedy token the engine reported: proof that the
last slot is the residual stream after the last layer, before the final norm, at the last position.

lm_head is most of what validation computes. What may be off by the engine's own rounding is computed as the
engine does, in bfloat16 where that is the weights' dtype and the processor has it: 6 times as fast on a core
with AVX-512 BF16, for many states together. What rejects a sample is computed in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eagle3_data.engines.language_model import decoder_layers, language_model_without_weights
from eagle3_data.errors import InputError, headline
from eagle3_data.validation.tensors import StoredTensors

TIE_RELATIVE = {"bfloat16": 2.0**-6, "float32": 2.0**-6, "fp8": 2.0**-4}
"""By the dtype of the stored states. The engine computes logits in its own dtype: in bfloat16 (8 bits of
precision) two logits this close, relative to the largest magnitude, may change places; and the 2.6 % that a
state loses in 8 bits move each logit by as much of the logits' spread."""
BLOCK_ROWS = 1024
"""Of lm_head in float32 at a time: Kimi's whole head would be 4.7 GB. A block of up to 32 MB is put where the
last one was; a larger one costs more than what is computed with it."""


class Head:
    """The end of a language model: what transformers computes after its last decoder layer."""

    def __init__(self, model: Any, layers: _Layers, projection: _Projection) -> None:
        self._model, self._layers, self._projection = model, layers, projection

    def normalized(self, states: torch.Tensor) -> torch.Tensor:
        """float32 states [N, H] as they enter lm_head: after the final norm. No logits are computed."""
        self._projection.stops = True
        try:
            return self._run(states)[0]
        finally:
            self._projection.stops = False

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """float32 logits [N, V] of states [N, H] before the final norm."""
        return self._run(states)[1]

    def log_probabilities(self, states: torch.Tensor) -> torch.Tensor:
        """float32 [N, V] of the next token of states [N, H] before the final norm, off by as much as the
        engine's own."""
        return self._run(states, rounded=True)[1].log_softmax(dim=-1)

    @property
    def vocab_size(self) -> int:
        return self._projection.out_features

    def disagreements(self, states: torch.Tensor, greedy: torch.Tensor, dtype: str = "bfloat16") -> list[int]:
        """Indices n where `greedy` [N] is neither the arg max of the logits of `states` [N, H], stored in
        `dtype`, nor within rounding of it, and those of degenerate states: their norm overflows, or every
        token has the same logit."""
        tolerance = TIE_RELATIVE[dtype]
        # rounding takes less than half of the tolerance, so what agrees within the other half does so exactly
        doubtful = ~self._agree(states, greedy, tolerance / 2, rounded=True)
        if doubtful.any():
            doubtful[doubtful.clone()] = ~self._agree(states[doubtful], greedy[doubtful], tolerance)
        return [int(n) for n in torch.nonzero(doubtful)[:, 0]]

    def _agree(
        self, states: torch.Tensor, greedy: torch.Tensor, tolerance: float, rounded: bool = False
    ) -> torch.Tensor:
        """Whether `greedy` [N] has the largest logit, or one that is less by `tolerance` of the largest
        magnitude, and the states [N, H] are not degenerate: bool [N]."""
        normalized, logits = self._run(states, rounded)
        best, least = logits.max(dim=-1).values, logits.min(dim=-1).values
        known = (greedy >= 0) & (greedy < logits.shape[1])
        reported = logits.gather(1, torch.where(known, greedy, 0)[:, None])[:, 0]
        agrees: torch.Tensor = (
            known
            & (best - reported <= tolerance * torch.maximum(best.abs(), least.abs()))
            & (best > least)
            & states.float().pow(2).sum(dim=-1).isfinite()
            & normalized.isfinite().all(dim=-1)
            & best.isfinite()
            & least.isfinite()
        )
        return agrees

    def used_after_the_layers(self, hidden_size: int) -> set[nn.Module]:
        """The modules that are called between the last layer and the logits. Raises InputError where the
        output of a layer is not a state of the hidden size, or does not reach lm_head."""
        used: set[nn.Module] = set()

        def note(module: nn.Module, _: Any) -> None:
            if self._layers.passed:
                used.add(module)

        hooks = [module.register_forward_pre_hook(note) for module in self._model.modules()]
        try:
            failure: Exception | None = None
            for self._layers.others in (None, (), (None,)):
                used.clear()
                try:
                    entered, logits = self._run(torch.zeros(2, hidden_size))
                except (TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
                    failure = error
                    continue
                if entered.shape[1] == hidden_size and logits.shape[1] == self._projection.out_features:
                    return used
        finally:
            for hook in hooks:
                hook.remove()
        raise InputError(
            f"the end of {type(self._model).__name__} of transformers cannot be computed from states of"
            f" {hidden_size} numbers alone"
        ) from failure

    def _run(self, states: torch.Tensor, rounded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """What enters lm_head [N, H] and the logits [N, V]; `rounded`: as the engine's are."""
        self._projection.rounds = rounded
        self._layers.states, self._layers.passed = states.float()[:, None], False
        token_ids = torch.zeros(len(states), 1, dtype=torch.long)
        with torch.no_grad():
            try:
                logits = self._model(input_ids=token_ids, use_cache=False).logits
            except _EnteredHead:
                logits = torch.empty(len(states), 0)
        return self._projection.entered.reshape(len(states), -1), logits.reshape(len(states), -1)


@dataclass(frozen=True)
class Unknown:
    """What stands for a head that is not available, and why."""

    reason: str


def find_head(directory: Path, trust_remote_code: bool = False) -> Head | Unknown:
    """The end of the target's model; where it is not available, no sample is rejected for it."""
    try:
        return read_head(directory, trust_remote_code)
    except InputError as error:
        return Unknown(str(error))


def read_head(directory: Path, trust_remote_code: bool = False) -> Head:
    """Raises InputError with the reason where transformers cannot build the architecture, or the checkpoint
    does not hold what follows the last layer in a form that is understood."""
    try:
        model = language_model_without_weights(directory, trust_remote_code)
        stored = StoredTensors(directory, model)
        return _with_weights(model, stored)
    except InputError:
        raise
    except Exception as error:  # transformers raises whatever it likes
        raise InputError(
            f"transformers cannot compute the final norm and lm_head of {directory}: {headline(error)}"
        ) from error


def _with_weights(model: Any, stored: StoredTensors) -> Head:
    """`model` with its layers replaced, and the weights of what follows them. All other weights are zeros
    without memory: what is computed with them enters the layers and goes no further."""
    tied = model.all_tied_weights_keys
    names = {module: name for name, module in model.named_modules()}
    shapes = {name: one.shape for name, one in model.named_parameters(remove_duplicate=False)}
    layers = decoder_layers(model)
    hidden_size = model.config.get_text_config(decoder=True).hidden_size
    linear = model.get_output_embeddings()
    if not isinstance(linear, nn.Linear):
        raise InputError(f"{type(model).__name__} of transformers has no lm_head")
    projection = _Projection(linear)
    path, _, name = names[linear].rpartition(".")
    setattr(model.get_submodule(path), name, projection)
    _drop_weights(model)

    head = Head(model, _Layers(layers), projection)
    owners = {model, model.get_decoder(), *head.used_after_the_layers(hidden_size)} - {projection}

    def read(parameter: str) -> torch.Tensor:
        return stored.read(filter(None, (parameter, tied.get(parameter))), shapes[parameter])

    for module in owners:
        for name, _ in list(module.named_parameters(recurse=False)):
            value = read(f"{names[module]}.{name}".removeprefix("."))
            setattr(module, name, nn.Parameter(value.float(), requires_grad=False))
    projection.rows = read(f"{names[linear]}.weight")
    if linear.bias is not None:
        projection.bias = read(f"{names[linear]}.bias").float()
    return head


def _drop_weights(model: nn.Module) -> None:
    """Zeros in place of all parameters and buffers; those of a parameter are one number, expanded."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            zeros = torch.zeros((), dtype=parameter.dtype).expand(parameter.shape)
            setattr(module, name, nn.Parameter(zeros, requires_grad=False))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, torch.zeros(buffer.shape, dtype=buffer.dtype))


@cache
def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 matrices; else torch does so one number at a time."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _Layers:
    """Stored states in place of what the decoder layers give."""

    def __init__(self, layers: nn.ModuleList) -> None:
        self.states = torch.empty(0)
        self.others: tuple[None, ...] | None = None
        """What a layer returns beside its states differs by architecture. None: it returns no tuple."""
        self.passed = False
        """Whether the last layer was called in this forward."""
        for layer in layers:
            layer.forward = self._forward

    def _forward(self, *_: Any, **__: Any) -> torch.Tensor | tuple[torch.Tensor | None, ...]:
        self.passed = True
        return self.states if self.others is None else (self.states, *self.others)


class _EnteredHead(Exception):  # noqa: N818  nothing is wrong
    """The forward has come as far as was asked."""


class _Projection(nn.Module):
    """lm_head, computed in float32 in blocks of its rows, or in its own dtype; remembers what entered it."""

    stops = False
    """Whether the forward ends here."""
    rounds = False
    """Whether bfloat16 will do."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = nn.Parameter(torch.zeros(()).expand(linear.weight.shape), requires_grad=False)
        """Zeros: some models ask for dtype and device."""
        self.rows = torch.zeros(()).expand(linear.weight.shape)
        self.bias: torch.Tensor | None = None
        self.entered = torch.empty(0)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.entered = states
        if self.stops:
            raise _EnteredHead
        if self.rounds and self.rows.dtype == torch.bfloat16 and has_fast_bfloat16():
            logits = nn.functional.linear(states.to(torch.bfloat16), self.rows).float()
        else:
            blocks = [states.float() @ rows.float().T for rows in self.rows.split(BLOCK_ROWS)]
            logits = torch.cat(blocks, dim=-1)
        return logits if self.bias is None else logits + self.bias
