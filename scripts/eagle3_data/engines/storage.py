"""How states are stored: as the engine computes them, or in eight bits (`extraction.storage_dtype`)."""

from __future__ import annotations

import torch

from eagle3_data.store.states import E4M3_LARGEST, FP8, SCALES

ROWS_AT_ONCE = 512
"""Are in float32 at a time: the memory for it is not vLLM's to plan with."""
SMALLEST_SCALE = 2.0**-40
"""Of a row of zeros, which cannot be divided by their largest."""


def stored_tensors(states: torch.Tensor, storage_dtype: str) -> dict[str, torch.Tensor]:
    """The tensors of a states file for states [T, L, H], on the same device."""
    if storage_dtype != FP8:
        return {"hidden_states": states.contiguous()}
    small, scales = quantize(states)
    return {"hidden_states": small, SCALES: scales}


def quantize(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """States [T, L, H] as float8_e4m3fn and float32 scales [T, L, 1], by which they are to be multiplied.

    A row's largest number becomes the largest of the format, or nearly so: scales are rounded up to bfloat16,
    since trainers multiply in bfloat16, where another scale would move a whole row. A row that is not finite
    stays so.
    """
    small = torch.empty(states.shape, dtype=torch.float8_e4m3fn, device=states.device)
    scales = torch.empty((*states.shape[:2], 1), dtype=torch.float32, device=states.device)
    for start in range(0, len(states), ROWS_AT_ONCE):
        rows = states[start : start + ROWS_AT_ONCE].float()
        largest = rows.abs().amax(dim=-1, keepdim=True)
        scale = _up_to_bfloat16(largest / E4M3_LARGEST).clamp(min=SMALLEST_SCALE)
        small[start : start + ROWS_AT_ONCE] = (rows / scale).to(torch.float8_e4m3fn)
        scales[start : start + ROWS_AT_ONCE] = scale
    return small, scales


def _up_to_bfloat16(numbers: torch.Tensor) -> torch.Tensor:
    """Of positive float32 numbers, the next that bfloat16 has."""
    bits = numbers.view(torch.int32)
    return torch.where(numbers.isfinite(), ((bits + 0xFFFF) & ~0xFFFF).view(torch.float32), numbers)
