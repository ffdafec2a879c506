"""What the reference costs, before it starts: seconds and memory. No torch.

Every weight is read and decoded once, and multiplied with all tokens that take it. The largest layer is in
memory once in float32, and while its weights are stacked once more.
"""

from __future__ import annotations

from dataclasses import dataclass

LONGEST_ROWS = 2048
"""Of a sample that are compared: the first ones depend on no later ones."""
READ_BYTES_PER_S = 0.25e9
"""From a network file system (as `eagle3_data.passes.forecast` assumes for a load)."""
DECODED_PER_S = {"cpu": 0.05e9, "cuda": 2e9}
"""Weights that become float32, by one core or one GPU. Measured of INT4 on a core: 0.07e9."""
FLOP_PER_S = {"cpu": 30e9, "cuda": 20e12}
"""In float32, by one core or one GPU. Measured on a core: 90e9."""
BYTES_A_NUMBER = {"none": 2.0, "fp8": 1.0}
FEWEST_BYTES_A_NUMBER = 0.5
START_S = 20.0
LONGEST_S = 4 * 3600.0
"""What is expected to take longer is not started."""
LAYERS_IN_MEMORY = 2.0
OTHER_BYTES = 2 << 30
"""Python with torch, and buffers of reading."""


@dataclass(frozen=True)
class Size:
    """Of a language model: bytes of its checkpoint, numbers in its decoder layers, in the largest one, and
    those that one token is multiplied with (fewer where it chooses experts)."""

    stored_bytes: int
    numbers: int
    largest_layer: int
    active: int
    hidden_size: int


@dataclass(frozen=True)
class Forecast:
    seconds: float
    memory_bytes: int
    read_bytes: int
    flop: float

    def __str__(self) -> str:
        length = f"{self.seconds / 60:,.0f} minutes" if self.seconds >= 120 else f"{self.seconds:.0f} seconds"
        return (
            f"about {length}, {self.memory_bytes / 2**30:,.1f} GiB of memory,"
            f" {self.read_bytes / 1e9:,.2f} GB to read, {self.flop / 1e12:,.2f} TFLOP"
        )


def forecast(size: Size, tokens: int, slots: int, device: str, cores: int) -> Forecast:
    """Of comparing samples with `tokens` in all (padded to one length), on "cpu" or "cuda"."""
    units = cores if device == "cpu" else 1
    flop = 2.0 * size.active * 2 * tokens  # each sample goes twice
    seconds = (
        START_S
        + size.stored_bytes / READ_BYTES_PER_S
        + size.numbers / (DECODED_PER_S[device] * units)
        + flop / (FLOP_PER_S[device] * units)
    )
    states = 4 * tokens * size.hidden_size * (slots + 20)  # of a layer's computation, about 20 copies
    memory = int(LAYERS_IN_MEMORY * 4 * size.largest_layer) + states + OTHER_BYTES
    return Forecast(seconds, memory, size.stored_bytes, flop)


def rough_size(stored_bytes: int, quantization: str, layers: int, hidden_size: int) -> Size:
    """What is known of a checkpoint without its model: as if all layers had one size, and every token took
    all of it."""
    numbers = int(stored_bytes / BYTES_A_NUMBER.get(quantization, FEWEST_BYTES_A_NUMBER))
    return Size(stored_bytes, numbers, numbers // layers, numbers, hidden_size)
