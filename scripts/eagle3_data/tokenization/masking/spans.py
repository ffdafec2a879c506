"""Where a turn lies in a rendering, and the made-up turns from which templates are learned. Standard library
only."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_data.tokenization.masking.call_style import Message

QUESTION: Message = {"role": "user", "content": "q"}
ANSWERED: Message = {"role": "assistant", "content": "one"}
CALLING: Message = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call00001", "type": "function", "function": {"name": "f", "arguments": {"k": "v"}}}
    ],
}
RESULT: Message = {"role": "tool", "name": "f", "tool_call_id": "call00001", "content": "r"}


@dataclass(frozen=True, slots=True)
class Span:
    """Characters start..stop of a rendering are a turn's generated text, stop..end the token that ends it
    (empty if there is none)."""

    start: int
    stop: int
    end: int


def common_prefix_length(one: str, other: str) -> int:
    """Length of the common prefix, by bisection: comparing slices is far faster than comparing characters."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low
