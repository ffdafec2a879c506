"""What engines that answer have in common: they take whole conversations, and ask on by themselves, so that
no turn waits for the supervisor."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle3_data.config import Target, Tokenization
from eagle3_data.engines.base import Alive, Done
from eagle3_data.errors import SampleError
from eagle3_data.generation.answers import LENGTH, STOP, WINDOW, Answered, Answers, Question, Turn
from eagle3_data.generation.dialogue import Asker, Conversation, EndError, Prompt
from eagle3_data.hashing import hash_bytes
from eagle3_data.records import JsonObject
from eagle3_data.target import TargetDescription
from eagle3_data.tokenization.masking.style import Message
from eagle3_data.tokenization.tokenizer import load_tokenizer

ALIVE_EVERY_S = 5.0


@dataclass(frozen=True)
class GeneratorSettings:
    """Everything an engine that answers is built from."""

    engine: str
    model_path: str
    dtype: str
    tensor_parallel: int
    max_length: int
    trust_remote_code: bool
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_ids: tuple[int, ...]
    description: TargetDescription
    target: Target
    tokenization: Tokenization
    arguments: JsonObject = field(default_factory=dict)


@dataclass(frozen=True)
class Generated:
    """One answer, of the request `name`: its ids with the token that ended it, if one did."""

    name: str
    answer: tuple[int, ...]


@dataclass
class _Dialogue:
    key: str
    conversation: Conversation | None
    prompt: Prompt
    turns: list[Turn] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)


class Generator(ABC):
    """An engine (`eagle3_data.engines.base.Engine`) of questions. A subclass generates single answers."""

    step_tokens: int | None = None

    def __init__(self, settings: GeneratorSettings) -> None:
        self.versions: dict[str, str] = {}
        self._settings = settings
        self._stops = frozenset(settings.stop_ids)
        self._under_way: dict[str, _Dialogue] = {}
        self._asker: Asker | None = None
        self._said_at = time.monotonic()

    @abstractmethod
    def start(self, name: str, prompt: list[int], max_tokens: int, seed: int) -> None:
        """Begin to generate at most `max_tokens` behind `prompt`, up to and including one of
        `settings.stop_ids`. Raises SampleError if the engine refuses."""

    @abstractmethod
    def advance(self) -> Iterable[Generated]:
        """Compute for a while; what got finished."""

    @abstractmethod
    def close(self) -> None: ...

    def submit(self, request: Question) -> None:
        conversation = None
        prompt = Prompt(list(request.token_ids), "")
        if request.conversation:
            conversation = Conversation.from_text(request.conversation)
            first = self._ask().first(conversation)
            if first.ids != prompt.ids:
                raise SampleError(
                    "the chat template renders this conversation otherwise than when it was planned"
                )
            prompt = first
        dialogue = _Dialogue(request.key, conversation, prompt)
        self._start(dialogue)
        self._under_way[request.key] = dialogue

    def step(self) -> list[Done | Alive]:
        done: list[Done | Alive] = []
        for generated in self.advance():
            key = generated.name.partition("/")[0]
            dialogue = self._under_way[key]
            answers = self._go_on(dialogue, self._turn(dialogue, generated.answer))
            if answers is not None:
                del self._under_way[key]
                done.append(Answered(key, answers))
        now = time.monotonic()
        if done:
            self._said_at = now
        elif now - self._said_at > ALIVE_EVERY_S:
            self._said_at = now
            done.append(Alive())
        return done

    def _turn(self, dialogue: _Dialogue, answer: tuple[int, ...]) -> Turn:
        prompt = dialogue.prompt
        if answer and answer[-1] in self._stops:
            finish = STOP
        else:
            finish = LENGTH if len(answer) >= self._settings.max_tokens else WINDOW
        return Turn(prompt.kept, tuple(prompt.ids[prompt.kept :]), answer, finish)

    def _go_on(self, dialogue: _Dialogue, turn: Turn) -> Answers | None:
        """Ask the next question; all answers if there is none."""
        dialogue.turns.append(turn)
        ending = ""
        if dialogue.conversation is not None:
            asker = self._ask()
            dialogue.messages.append(asker.message(turn))
            try:
                following = asker.next(dialogue.conversation, dialogue.messages, dialogue.prompt, turn)
                if following is not None:
                    if len(following.ids) >= self._settings.max_length:
                        raise EndError("no-room")
                    dialogue.prompt = following
                    self._start(dialogue)
                    return None
            except EndError as end:
                ending = end.ending
        return Answers(tuple(dialogue.turns), ending)

    def _start(self, dialogue: _Dialogue) -> None:
        settings = self._settings
        number, prompt = len(dialogue.turns) + 1, dialogue.prompt.ids
        room = settings.max_length - len(prompt)
        if room < 1:
            raise SampleError(f"a prompt of {len(prompt)} tokens leaves no room for an answer")
        seed = int(hash_bytes(f"{settings.seed} {dialogue.key} {number}".encode())[:8], 16) & 0x7FFFFFFF
        self.start(f"{dialogue.key}/{number}", prompt, min(settings.max_tokens, room), seed)

    def _ask(self) -> Asker:
        """Made when the first conversation of several turns comes: it takes the tokenizer."""
        if self._asker is None:
            settings = self._settings
            tokenizer = load_tokenizer(settings.description, settings.target, settings.tokenization)
            self._asker = Asker(tokenizer, settings.tokenization)
        return self._asker
