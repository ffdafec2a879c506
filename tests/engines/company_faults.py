"""Faults of engines that a canary does not meet: they need the real target, and most need company.

FAKE_ENGINE_FAULTS (see fake_engine) says which sample meets which:
{"mixed": [key]}     among others, its rows are another request's, as far as that goes
{"chunk": [key]}     among others, tokens 64 to 127 are stale: another request's rows
{"slots": [key]}     among others, its two middle slots change places
{"swap": true}       the two middle slots of every sample change places, alone or not
{"above": true}      the slot before the last holds the layer above it, alone or not
"""

from __future__ import annotations

from dataclasses import replace

import torch
from fake_engine import faults

from eagle3_data.engines.base import EngineSettings

CHUNK = slice(64, 128)
KEY_LENGTH = 32
"""Of a sample's; a canary's are shorter."""


def spoiled(key: str, states: torch.Tensor, company: torch.Tensor | None) -> torch.Tensor:
    """What the engine makes of `states` [T, L, H]; `company` are those of another request, None for a sample
    that is alone."""
    if len(key) != KEY_LENGTH:
        return states
    now, states = faults(), states.clone()
    swapped = states[:, [0, 2, 1, *range(3, states.shape[1])]]
    if now.get("swap"):
        states = swapped
    if company is None:
        return states
    if key in now.get("mixed", ()):
        common = min(len(states), len(company))
        states[:common] = company[:common]
    if key in now.get("chunk", ()):
        states[CHUNK] = company[CHUNK]
    if key in now.get("slots", ()):
        states = swapped
    return states


def asked_for(settings: EngineSettings) -> EngineSettings:
    """The settings with the layers that are really captured. A canary captures every layer, this does not
    touch it."""
    *others, before, last = settings.layers
    if faults().get("above") and before + 1 < last:
        return replace(settings, layers=(*others, before + 1, last))
    return settings
