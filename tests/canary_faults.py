"""What a wrong capture looks like: each function spoils states files as a fault of the engine would, and
names nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from hs_connectors.fp8_utils import dequantize_fp8_tensor
from safetensors.torch import load_file, save_file

from eagle3_data.canary.checks import MAX_BATCHED_TOKENS, Answer
from eagle3_data.engines.storage import stored_tensors
from eagle3_data.store.states import SCALES
from eagle3_data.validation.head import Head

Spoil = Callable[[torch.Tensor], torch.Tensor]


def spoil(answers: list[Answer], change: Spoil, shortest: int = 1, company_only: bool = False) -> None:
    """Change the states [T, L, H] of every answer of at least `shortest` tokens."""
    for answer in answers:
        if len(answer.request.token_ids) >= shortest and not (company_only and answer.alone):
            rewrite(Path(answer.request.states_path), change)


def rewrite(path: Path, change: Spoil) -> None:
    tensors, states = load_file(path), load_states(path)
    changed = change(states.clone()).to(states.dtype)
    save_file({**tensors, **stored_tensors(changed, "fp8" if SCALES in tensors else "same")}, path)


def load_states(path: Path) -> torch.Tensor:
    """The states that a file stands for."""
    tensors = load_file(path)
    states, scales = tensors["hidden_states"], tensors.get(SCALES)
    return states if scales is None else dequantize_fp8_tensor(states, scales)


def layer_off_by_one(states: torch.Tensor) -> torch.Tensor:
    """Every slot but the last holds the next layer's states."""
    return torch.cat([states[:, 1:], states[:, -1:]], dim=1)


def zeroed_tail(states: torch.Tensor) -> torch.Tensor:
    states[-3:] = 0
    return states


def dropped_chunk(states: torch.Tensor) -> torch.Tensor:
    """The second step's states are the first's again."""
    states[MAX_BATCHED_TOKENS : 2 * MAX_BATCHED_TOKENS] = states[:MAX_BATCHED_TOKENS]
    return states


def reversed_tokens(states: torch.Tensor) -> torch.Tensor:
    return states.flip(0)


def post_norm(head: Head) -> Spoil:
    def change(states: torch.Tensor) -> torch.Tensor:
        states[:, -1] = head.normalized(states[:, -1].float()).to(states.dtype)
        return states

    return change


def swap_states(answers: list[Answer]) -> None:
    """The rows of two samples change places, as far as the shorter goes, in every answer of theirs; each file
    keeps its own ids and shape."""
    lengths = sorted({len(answer.request.token_ids) for answer in answers})[-2:]
    for alone in (False, True):
        pair = [
            next(one for one in answers if one.alone == alone and len(one.request.token_ids) == length)
            for length in lengths
        ]
        paths = [Path(answer.request.states_path) for answer in pair]
        shorter, longer = (load_states(path) for path in paths)
        rewrite(paths[0], lambda states, other=longer: other[: len(states)])  # type: ignore[misc]
        rewrite(paths[1], lambda states, other=shorter: torch.cat([other, states[len(other) :]]))  # type: ignore[misc]


def swap_samples(answers: list[Answer]) -> None:
    """Two samples' files change places."""
    one, other = (Path(answer.request.states_path) for answer in answers[:2])
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
