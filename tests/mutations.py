"""Kinds of wrong states that an engine could write with a right checksum, and which proof sees each.

A mutation gets the states [T, L, H] float32 of a sample and what else the engine had; it returns what the
engine would have written. docs/proofs.md shows them all:

    PYTHONPATH=scripts:tests python tests/mutations.py    writes its table
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

CHUNK = 64


@dataclass(frozen=True)
class Material:
    """Of one sample: its states [T, layers + 1, H] after every layer, the slots' layers, the states
    [T, layers, H] of another sample and of an untrained model, and the final norm."""

    every_layer: torch.Tensor
    layers: tuple[int, ...]
    other: torch.Tensor
    untrained: torch.Tensor
    norm: Callable[[torch.Tensor], torch.Tensor]

    @property
    def states(self) -> torch.Tensor:
        return self.every_layer[:, list(self.layers)].clone()


Damage = Callable[[Material], torch.Tensor]


@dataclass(frozen=True)
class Mutation:
    """`by` are the proofs of every sample that see it, in `share` of the damaged samples at least; `prefix`
    says whether shared-prefix does, where a sample shares one."""

    name: str
    damage: Damage
    by: tuple[str, ...] = ()
    share: float = 1.0
    prefix: bool = False

    def row(self) -> str:
        """A line of the table in docs/proofs.md."""
        few = "" if self.share == 1 else " (most)" if self.share > 0.5 else " (some)"
        every = ", ".join(self.by) + few if self.by else "none"
        return f"| {self.name} | {every} | {'yes' if self.prefix else ''} |"


def slots(change: Callable[[torch.Tensor, Material], torch.Tensor], *which: int) -> Damage:
    """Changes some slots [T, H], all where none is named."""

    def damage(material: Material) -> torch.Tensor:
        states = material.states
        for k in which or range(states.shape[1]):
            states[:, k] = change(states[:, k].clone(), material)
        return states

    return damage


def rows(change: Callable[[torch.Tensor, Material], torch.Tensor]) -> Damage:
    return lambda material: change(material.states, material)


def swapped(a: int, b: int) -> Damage:
    def damage(material: Material) -> torch.Tensor:
        states = material.states
        states[:, [a, b]] = states[:, [b, a]]
        return states

    return damage


def layer_off(slot: int, by: int) -> Damage:
    def damage(material: Material) -> torch.Tensor:
        states = material.states
        states[:, slot] = material.every_layer[:, material.layers[slot] + by]
        return states

    return damage


def noise(share: float) -> Callable[[torch.Tensor, Material], torch.Tensor]:
    def change(states: torch.Tensor, _: Material) -> torch.Tensor:
        random = torch.randn(states.shape, generator=torch.Generator().manual_seed(1))
        return states + share * states.norm(dim=-1, keepdim=True) / states.shape[-1] ** 0.5 * random

    return change


def middle(states: torch.Tensor) -> slice:
    start = len(states) // 2
    return slice(start, start + CHUNK)


def stale_chunk(states: torch.Tensor, _: Material) -> torch.Tensor:
    chunk = middle(states)
    old = states[chunk.start - CHUNK : chunk.start].clone()
    states[chunk] = old[: len(states[chunk])]
    return states


def foreign_chunk(states: torch.Tensor, material: Material) -> torch.Tensor:
    states[middle(states)] = material.other[middle(states)]
    return states


def zero_chunk(states: torch.Tensor, _: Material) -> torch.Tensor:
    states[middle(states)] = 0
    return states


def at(index: int | slice, value: Callable[[torch.Tensor, Material], torch.Tensor | float]) -> Damage:
    def change(states: torch.Tensor, material: Material) -> torch.Tensor:
        states[index] = value(states.clone(), material)
        return states

    return rows(change)


def interleaved(states: torch.Tensor, material: Material) -> torch.Tensor:
    states[1::2] = material.other[1::2]
    return states


def one_number(value: float) -> Damage:
    def change(states: torch.Tensor, _: Material) -> torch.Tensor:
        states[len(states) // 3, 1, 5] = value
        return states

    return rows(change)


def two_rows_swapped(states: torch.Tensor, _: Material) -> torch.Tensor:
    n = len(states) // 2
    states[[n, n + 1]] = states[[n + 1, n]]
    return states


def half(states: torch.Tensor, _: Material) -> torch.Tensor:
    """Outgrows half precision, as a large target's residual stream does."""
    return (states * (1e5 / states.abs().amax())).half().float()


GREEDY, LOSS, NUMBERS, STRUCTURE, SHARED = (
    "greedy-token", "token-loss", "numbers", "structure", "shared-rows"
)  # fmt: skip
LAST = -1
MUTATIONS = [
    Mutation("last slot after the final norm", slots(lambda x, m: m.norm(x), LAST),
             by=(GREEDY,)),
    Mutation("last slot one layer early", layer_off(LAST, -1),
             prefix=True),
    Mutation("slots 0 and 1 swapped", swapped(0, 1),
             prefix=True),
    Mutation("slots 0 and 2 swapped", swapped(0, 2),
             prefix=True),
    Mutation("slots 1 and 2 swapped", swapped(1, 2),
             prefix=True),
    Mutation("slot 0 and the last swapped", swapped(0, LAST),
             by=(GREEDY,), share=0.2, prefix=True),
    Mutation("slot 1 and the last swapped", swapped(1, LAST),
             by=(GREEDY,), share=0.2, prefix=True),
    Mutation("slot 2 and the last swapped", swapped(2, LAST),
             by=(GREEDY,), share=0.2, prefix=True),
    Mutation("a middle slot one layer late", layer_off(1, 1),
             prefix=True),
    Mutation("a middle slot one layer early", layer_off(1, -1),
             prefix=True),
    Mutation("a slot twice", slots(lambda x, m: m.states[:, 0], 1),
             prefix=True),
    Mutation("a middle slot scaled by 2", slots(lambda x, _: 2 * x, 1),
             prefix=True),
    Mutation("the last slot scaled by 2", slots(lambda x, _: 2 * x, LAST),
             prefix=True),
    Mutation("5 % noise in a middle slot", slots(noise(0.05), 1)),
    Mutation("50 % noise in a middle slot", slots(noise(0.5), 1),
             prefix=True),
    Mutation("noise instead of the last slot", slots(lambda x, m: noise(1.0)(x, m) - x, LAST),
             by=(GREEDY,), share=0.8),
    Mutation("rows of a middle slot one token late", slots(lambda x, _: x.roll(1, 0), 1),
             prefix=True),
    Mutation("rows of the last slot one token late", slots(lambda x, _: x.roll(1, 0), LAST),
             by=(GREEDY, LOSS,)),
    Mutation("rows of all slots one token late", slots(lambda x, _: x.roll(1, 0)),
             by=(GREEDY, LOSS,)),
    Mutation("rows of all slots one token early", slots(lambda x, _: x.roll(-1, 0)),
             by=(GREEDY, LOSS, SHARED,)),
    Mutation("all rows but the last one token late", at(slice(1, -1), lambda x, _: x[:-2]),
             by=(LOSS,)),
    Mutation("rows of the last slot in reverse", slots(lambda x, _: x.flip(0), LAST),
             by=(GREEDY,), share=0.6),
    Mutation("the last token's row stale", at(LAST, lambda x, _: x[-2]),
             by=(GREEDY,), share=0.6),
    Mutation("the last token's row zero", at(LAST, lambda x, _: 0.0),
             by=(NUMBERS,)),
    Mutation("a middle chunk stale", rows(stale_chunk),
             by=(LOSS,), share=0.6),
    Mutation("a middle chunk stale in a middle slot", slots(stale_chunk, 1)),
    Mutation("a middle chunk zero", rows(zero_chunk),
             by=(NUMBERS,)),
    Mutation("a middle chunk of another request", rows(foreign_chunk),
             by=(LOSS,), share=0.6),
    Mutation("every other row of another request", rows(interleaved),
             by=(GREEDY,), share=0.1),
    Mutation("the first 32 rows of another request", at(slice(0, 32), lambda _, m: m.other[32:64]),
             by=(LOSS,), share=0.05, prefix=True),
    Mutation("all but the last row of another request", at(slice(0, -1), lambda _, m: m.other[:-1]),
             by=(LOSS,)),
    Mutation("another sample of the same length", rows(lambda _, m: m.other),
             by=(GREEDY, LOSS, SHARED,)),
    Mutation("a prefix-cache hole left zero", at(slice(0, 16), lambda x, _: 0.0),
             by=(NUMBERS,)),
    Mutation("a prefix-cache hole in all slots but the last",
             slots(lambda x, m: torch.cat([m.other[32:48, 0], x[16:]]), 0, 1, 2),
             prefix=True),
    Mutation("a stale file of an untrained model", rows(lambda _, m: m.untrained),
             by=(GREEDY, LOSS,)),
    Mutation("the last row that of a padding token", at(LAST, lambda _, m: m.other[0]),
             by=(GREEDY, SHARED,), share=0.3),
    Mutation("a slot the same at every token", slots(lambda x, _: x[:1].expand_as(x), 1),
             by=(NUMBERS,)),
    Mutation("overflow of half precision in a slot", slots(half, 1),
             by=(NUMBERS,)),
    Mutation("one number not finite", one_number(float("nan")),
             by=(NUMBERS,)),
    Mutation("one number 1,000 times too large", one_number(3e4)),
    Mutation("two tokens' rows swapped", rows(two_rows_swapped)),
    Mutation("one row too few", lambda m: m.states[:-1],
             by=(STRUCTURE,)),
]  # fmt: skip

PAGE = Path(__file__).parents[1] / "docs/proofs.md"
BEGIN, END = "<!-- table of tests/mutations.py -->\n", "<!-- end -->"


def page() -> str:
    """docs/proofs.md with the table as it should be."""
    head = "| what is wrong | seen by, of every sample | by shared-prefix |\n"
    before, _, rest = PAGE.read_text().partition(BEGIN)
    table = head + "|---|---|---|\n" + "".join(f"{one.row()}\n" for one in MUTATIONS)
    return f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page())
