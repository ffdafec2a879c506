"""A language model of transformers whose weights are read from the checkpoint while it computes, one decoder
layer at a time.

The model is built without memory for weights. What a layer needs is read when the forward pass reaches it and
dropped when it leaves it: never more than one layer is there. Of the embedding only the rows of the given
tokens are read, of lm_head nothing. transformers' own rules say how stored weights are renamed, stacked and
cut (checkpoints have a tensor for each expert, transformers' models one for all); quantized weights become
the values they stand for. Everything is computed in float32.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from eagle3_data.engines.language_model import decoder_layers, is_wrapped, language_model_without_weights
from eagle3_data.errors import InputError, headline
from eagle3_data.validation.tensors import BESIDE_WEIGHTS, StoredWeights, sources_in_model, without_path

COMPUTED = re.compile(r"rotary_emb\.(inv_freq|cos_cached|sin_cached)$")
"""What old checkpoints hold, and every model computes."""

Visit = Callable[[int, torch.Tensor], torch.Tensor]


class StreamedModel:
    """Raises InputError with the reason where transformers cannot build the architecture, or the checkpoint
    does not hold its layers in a form that is understood."""

    def __init__(self, directory: Path, trust_remote_code: bool = False, device: str = "cpu") -> None:
        try:
            self.model = language_model_without_weights(directory, trust_remote_code)
            _compute_buffers(self.model, device)
            self.layers = decoder_layers(self.model)
            self._parts = _Parts(directory, self.model, self.layers, device)
        except InputError:
            raise
        except Exception as error:  # transformers raises whatever it likes
            raise InputError(
                f"transformers cannot build the model of {directory}: {headline(error)}"
            ) from error
        self._directory, self.device = directory, device

    def run(self, token_ids: torch.Tensor, visit: Visit) -> None:
        """Compute the states of token ids [N, T]. `visit(k, states)` is called, on the model's device, with
        the states [N, T, H] that enter the first layer (k = 0), those after k layers, and those after the
        final norm (k = L + 1); what it returns is computed on with. Raises InputError with the reason where
        that is not possible."""
        head: object = self.model.get_output_embeddings()
        if not isinstance(head, nn.Module):
            raise InputError(f"{type(self.model).__name__} of transformers has no lm_head")

        def stop(_: nn.Module, entered: tuple[Any, ...]) -> None:
            visit(len(self.layers) + 1, entered[0])
            raise _HeadReached

        hooks = [*self._parts.hooks(), *_visits(self.layers, visit), head.register_forward_pre_hook(stop)]
        try:
            with torch.inference_mode():
                self.model(input_ids=token_ids.to(self.device), use_cache=False)
        except _HeadReached:
            return
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"transformers cannot compute the states of {self._directory}: {headline(error)}"
            ) from error
        finally:
            for hook in hooks:
                hook.remove()
        raise InputError(f"{type(self.model).__name__} of transformers does not call its lm_head")


class _HeadReached(Exception):  # noqa: N818  no error: what follows the final norm is not needed
    pass


def _visits(layers: nn.ModuleList, visit: Visit) -> list[Any]:
    def before(_: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if given:
            return (visit(0, given[0]), *given[1:]), named
        return given, {**named, "hidden_states": visit(0, named["hidden_states"])}

    def after(k: int, output: Any) -> Any:
        return (visit(k, output[0]), *output[1:]) if isinstance(output, tuple) else visit(k, output)

    return [
        layers[0].register_forward_pre_hook(before, with_kwargs=True),
        *(
            layer.register_forward_hook(lambda _, __, output, k=k: after(k, output))
            for k, layer in enumerate(layers, 1)
        ),
    ]


def _compute_buffers(model: Any, device: str) -> None:
    """Give the buffers that no checkpoint holds (rotary frequencies) their values, as transformers does when
    it loads a model: its `initialize_weights` computes them. What that leaves out is NaN, and seen."""

    def buffers() -> Iterable[tuple[nn.Module, str, torch.Tensor]]:
        for module in model.modules():
            for name in module._non_persistent_buffers_set:
                if (buffer := getattr(module, name)) is not None:
                    yield module, name, buffer

    for module, name, buffer in buffers():
        value = torch.empty_like(buffer, device="cpu")
        setattr(module, name, value.fill_(float("nan")) if value.is_floating_point() else value)
        module._is_hf_initialized = False  # type: ignore[assignment]
    model.initialize_weights()
    for module, name, buffer in buffers():
        setattr(module, name, buffer.to(device))


class _Parts:
    """The parts of a model that are read and dropped as one: a decoder layer with all in it, or any other
    module with what is directly in it."""

    def __init__(self, directory: Path, model: Any, layers: nn.ModuleList, device: str) -> None:
        self._model, self._device = model, device
        self._stored = StoredWeights(directory)
        self._sources = sources_in_model(self._stored.files, model, is_wrapped(directory))
        self._tied: dict[str, str] = dict(model.all_tied_weights_keys)
        self._empty = {name: _without_memory(one, device) for name, one in model.state_dict().items()}
        self._modules = dict(model.named_modules())
        self._head = next(
            (name for name, one in self._modules.items() if one is model.get_output_embeddings()), ""
        )
        path = next(name for name, module in self._modules.items() if module is layers)
        self._layer = re.compile(rf"{re.escape(path)}\.(\d+)(?=\.)")
        self._needed: dict[str, list[str]] = {}
        for name in self._empty:
            self._needed.setdefault(self._part_of(name), []).append(name)
        for part in self._needed:
            self._drop(part)
        self._reject_unknown_weights(path, len(layers))

    def _part_of(self, name: str) -> str:
        found = self._layer.match(name)
        return found[0] if found else name.rpartition(".")[0]

    def _reject_unknown_weights(self, path: str, layers: int) -> None:
        """Raises InputError where the layers below `path` have weights that transformers' model does not
        have: it is another model then."""
        used = {stored for source in self._sources.values() for _, stored in source.tensors}
        ignored = self._model._keys_to_ignore_on_load_unexpected or ()
        needless = [COMPUTED, BESIDE_WEIGHTS, *map(re.compile, ignored)]
        in_a_layer = re.compile(rf"{re.escape(without_path(path))}\.(\d+)\.")
        for name in self._stored.files:
            found = in_a_layer.match(without_path(name))
            if name in used or not found or int(found[1]) >= layers:  # those above predict further tokens
                continue
            if not any(one.search(name) for one in needless):
                raise InputError(
                    f"{type(self._model).__name__} of transformers has nothing for {name} in"
                    f" {self._stored.directory}"
                )

    def hooks(self) -> list[Any]:
        """Hooks by which each part is read when it is called, and dropped when it is done."""
        hooks = []
        for part in self._needed.keys() - {self._head}:
            module = self._modules[part]
            hooks.append(module.register_forward_pre_hook(partial(self._on_call, part), prepend=True))
            hooks.append(module.register_forward_hook(partial(self._on_return, part)))
        return hooks

    def _on_call(self, part: str, module: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        if module is self._model.get_input_embeddings():
            return (self._read_rows(f"{part}.weight", given[0]), *given[1:])
        self._read(part)
        return given

    def _on_return(self, part: str, *_: object) -> None:
        self._drop(part)

    def _read(self, part: str) -> None:
        missing = dict.fromkeys(self._needed[part])
        for name in self._needed[part]:
            for target, value in self._values(name, self._device).items() if name in missing else ():
                self._check_shape(target, value)
                self._put(target, value)
                missing.pop(target, None)
        if missing:
            raise InputError(f"{self._stored.directory} holds no weights for {next(iter(missing))}")

    def _values(self, name: str, device: str) -> dict[str, torch.Tensor]:
        """What is stored for the model's tensor `name`, and what comes with it from the same conversion."""
        known = next((one for one in (name, self._tied.get(name)) if one in self._sources), None)
        if known is None:
            return {}
        source = self._sources[known]
        if source.conversion is None:
            return {name: self._stored.values(source.tensors[0][1], device)}
        conversion = copy.deepcopy(source.conversion)
        for pattern, stored in source.tensors:
            read = partial(self._stored.values, stored, device)
            conversion.add_tensor(known, stored, pattern, read)
        converted = conversion.convert(known, model=self._model, config=self._model.config)
        return {
            target: values[0] if isinstance(values, list) else values for target, values in converted.items()
        }

    def _read_rows(self, name: str, token_ids: torch.Tensor) -> torch.Tensor:
        """Of the embedding `name`, only the rows of the given token ids. Returns their numbers among these
        rows."""
        rows = self._values(name, "cpu").get(name)  # there, plain rows are mapped, not read
        if rows is None:
            raise InputError(f"{self._stored.directory} holds no weights for {name}")
        self._check_shape(name, rows)
        ids, numbers = torch.unique(token_ids, return_inverse=True)
        self._put(name, rows[ids.cpu()].to(self._device))
        return numbers

    def _check_shape(self, name: str, value: torch.Tensor) -> None:
        if name not in self._empty or value.shape != self._empty[name].shape:
            wanted = list(self._empty[name].shape) if name in self._empty else "not known"
            raise InputError(
                f"what {self._stored.directory} holds for {name} is {list(value.shape)}, in the architecture"
                f" it is {wanted}"
            )

    def _put(self, name: str, value: torch.Tensor) -> None:
        path, _, attribute = name.rpartition(".")
        module, value = self._modules[path], value.float() if value.is_floating_point() else value
        if attribute in module._parameters:
            value = nn.Parameter(value, requires_grad=False)
        setattr(module, attribute, value)

    def _drop(self, part: str) -> None:
        for name in self._needed[part]:
            self._put(name, self._empty[name])


def _without_memory(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """One number in place of all: NaN, so that it is seen where it is computed with."""
    number = float("nan") if tensor.is_floating_point() else 0
    return torch.full((), number, dtype=tensor.dtype, device=device).expand(tensor.shape)
