"""Reasoning inside a turn's text: where an empty scaffold of it ends, and what of a text is answer. Standard
library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningMarkers:
    """Pairs of texts that enclose reasoning, such as `<think>` and `</think>`."""

    pairs: Sequence[tuple[str, str]]

    def behind_scaffold(self, text: str, start: int, space: str | None = None) -> int:
        """`start`, or the place behind an empty scaffold there, spaced or not, also behind one whose opening
        belongs to the generation prompt.

        The scaffold ends with `space` if that follows it: more white space is the answer's own. Otherwise all
        white space is the scaffold's.
        """
        for opening, closing in self.pairs:
            position = skip_space(text, start)
            if text.startswith(opening, position):
                position += len(opening)
            elif not _ends_with(text, start, opening):
                continue
            position = skip_space(text, position)
            if text.startswith(closing, position):
                position += len(closing)
                return (
                    position + len(space)
                    if space is not None and text.startswith(space, position)
                    else skip_space(text, position)
                )
        return start

    def without_scaffold(self, content: str) -> str:
        """Content without an empty scaffold that the data itself holds."""
        return content[self.behind_scaffold(content, 0) :]

    def split(self, content: str) -> tuple[str, str]:
        """Inline reasoning (empty if there is none) and answer, as templates take them apart; both without
        outer space."""
        for opening, closing in self.pairs:
            before, found, answer = content.rpartition(closing)
            if found:
                return before.strip().removeprefix(opening).strip(), answer.strip()
        return "", content.strip()


def skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _ends_with(text: str, end: int, tail: str) -> bool:
    """Whether text[:end] ends with `tail`, some white space aside; without copying all of it."""
    return text[max(0, end - len(tail) - 8) : end].rstrip().endswith(tail)
