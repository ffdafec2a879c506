"""Reasoning inside a turn's text: where an empty scaffold of it ends, and what of a text is answer. Standard
library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain


@dataclass(frozen=True)
class ReasoningMarkers:
    """Pairs of texts that enclose reasoning, such as `<think>` and `</think>`."""

    pairs: Sequence[tuple[str, str]]

    def behind_scaffold(self, text: str, start: int, space: str | None = None) -> int:
        """`start`, or the place behind an empty scaffold there, spaced or not, also behind one without its
        opening, which belongs to the generation prompt, or is left out.

        The scaffold ends with `space` if that follows it: more white space is the answer's own. Otherwise all
        white space is the scaffold's.
        """
        for opening, closing in self.pairs:
            position = skip_space(text, start)
            if text.startswith(opening, position):
                position += len(opening)
            position = skip_space(text, position)
            if text.startswith(closing, position):
                position += len(closing)
                return (
                    position + len(space)
                    if space is not None and text.startswith(space, position)
                    else skip_space(text, position)
                )
        return start

    def behind_scaffolds(self, text: str, start: int, limit: int, space: str | None = None) -> int:
        """The same for several in a row, such as the template's and the data's own, up to `limit`."""
        while start < limit and start < (behind := self.behind_scaffold(text, start, space)) <= limit:
            start = behind
        return start

    def without_markers(self, text: str) -> str:
        for marker in chain.from_iterable(self.pairs):
            text = text.replace(marker, "")
        return text

    def without_scaffold(self, content: str) -> str:
        """Content without an empty scaffold that the data itself holds."""
        return content[self.behind_scaffolds(content, 0, len(content)) :]

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
