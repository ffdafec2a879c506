"""What is asked and answered: the words between the supervisor and the engine, and what the store keeps.
Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3_data.engines.base import Done, Work

STOP, LENGTH, WINDOW = "stop", "length", "window"
"""Why an answer ended: with a token that ends it, at `generation.max_tokens`, or at the end of
`tokenization.max_length`."""

LOOP_PERIOD, LOOP_TOKENS, LOOP_TIMES = 64, 32, 3
"""An answer loops if its last LOOP_TOKENS tokens or more, and LOOP_TIMES periods or more, repeat what stands
up to LOOP_PERIOD tokens before."""


@dataclass(frozen=True)
class Question(Work):
    """A conversation to answer. `token_ids` are the prompt of its first turn; `conversation` is what it takes
    to ask on (`eagle3_data.generation.dialogue.Conversation`, JSON), empty if one answer is all."""

    conversation: str

    @property
    def cost(self) -> int:
        return 1


@dataclass(frozen=True)
class Turn:
    """An answer, and what it answers: the prompt is the first `kept` tokens of all that was seen before
    (the previous prompt and answer), and `added`. `answer` is what the engine generated, with the token that
    ended it. `finish` is STOP, LENGTH or WINDOW."""

    kept: int
    added: tuple[int, ...]
    answer: tuple[int, ...]
    finish: str

    @property
    def text_ids(self) -> tuple[int, ...]:
        """The answer without the token that ended it."""
        return self.answer[:-1] if self.finish == STOP else self.answer

    @property
    def is_cut(self) -> bool:
        return self.finish != STOP

    @property
    def loops(self) -> bool:
        """Whether it was cut in the middle of repetitions."""
        return self.is_cut and ends_in_loop(self.answer)


@dataclass(frozen=True)
class Answers:
    """All turns of one conversation. `ending` says why it ended before its last question (a notice of
    `eagle3_data.tokenization.reading.rows`), empty if it did not."""

    turns: tuple[Turn, ...]
    ending: str = ""

    @property
    def tokens(self) -> int:
        """How many were generated."""
        return sum(len(turn.answer) for turn in self.turns)

    def prompts(self) -> Iterator[tuple[Turn, list[int]]]:
        """Each turn with the whole prompt that it answers."""
        seen: list[int] = []
        for turn in self.turns:
            prompt = [*seen[: turn.kept], *turn.added]
            yield turn, prompt
            seen = [*prompt, *turn.answer]


@dataclass(frozen=True)
class Answered(Done):
    """The engine has answered a conversation."""

    answers: Answers


def ends_in_loop(ids: Sequence[int]) -> bool:
    for period in range(1, LOOP_PERIOD + 1):
        length = max(LOOP_TOKENS, LOOP_TIMES * period)
        if len(ids) < length + period:
            continue
        if list(ids[-length:]) == list(ids[-length - period : -period]):
            return True
    return False
