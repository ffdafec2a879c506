"""Conversations turn by turn: what the target is asked, given what it has answered.

A prompt is the chat template's own rendering up to the generation prompt. Where the template shows the
conversation so far as the target saw it, letter by letter, the next prompt continues its token ids: nothing
that was generated is encoded again. Where the template changes history (it strips reasoning, say), the next
prompt is encoded anew, as a server would do it, and begins a sample of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_data.config import Tokenization
from eagle3_data.errors import InputError
from eagle3_data.generation.answers import Turn
from eagle3_data.hashing import hash_json
from eagle3_data.tokenization.encoder import encode_behind
from eagle3_data.tokenization.masking.grammar import CALLING, USER, Grammar
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers
from eagle3_data.tokenization.masking.style import NAME, TOOLS, Message, Tools
from eagle3_data.tokenization.masking.template import probing
from eagle3_data.tokenization.reading.messages import REASONING_FIELDS
from eagle3_data.tokenization.reading.rows import BadRowError, DropError
from eagle3_data.tokenization.tokenizer import TargetTokenizer

NEEDS_TEMPLATE = (
    "the target has no chat template, and to ask it anything needs one (generation.responses: target); put"
    " the model's chat_template.jinja into its directory, or name a file in tokenization.chat_template"
)


@dataclass(frozen=True)
class Conversation:
    """What others say: `opening` before the target's first turn, each of `further` before another one."""

    opening: list[Message]
    further: list[list[Message]]
    tools: Tools

    def to_text(self) -> str:
        return json.dumps([self.opening, self.further, self.tools], ensure_ascii=False)

    @classmethod
    def from_text(cls, text: str) -> Conversation:
        return cls(*json.loads(text))


@dataclass(frozen=True)
class Prompt:
    """Token ids and the text they are of. `kept`: how many of all the tokens seen before they begin with."""

    ids: list[int]
    text: str
    kept: int = 0


class EndError(Exception):
    """A conversation cannot be continued; `ending` is a notice of the ledger."""

    def __init__(self, ending: str) -> None:
        super().__init__(ending)
        self.ending = ending


class Asker:
    """Makes prompts for one target. `stops` are the token ids that end an answer: the target's own stop
    tokens, and where its chat template closes turns with none of them, those with which it does."""

    def __init__(self, tokenizer: TargetTokenizer, settings: Tokenization) -> None:
        if tokenizer.template is None:
            raise InputError(NEEDS_TEMPLATE)
        self._backend, self._template = tokenizer.backend, tokenizer.template
        self._markers = ReasoningMarkers(settings.reasoning_markers)
        with probing():
            grammar = Grammar.learn(self._template, self._markers)
            self._call = self._opening_of_a_call()
        own = self._template.stop_texts
        ends_turns = any(stop in closing for stop in own for closing in grammar.closings)
        # not where it does: the token that closes turns in history may also end a part of an answer (gpt-oss)
        texts = own if ends_turns else grammar.stops
        encoded = (self._backend.encode(text, [])[0] for text in texts)
        self.stops = tuple(sorted({ids[0] for ids in encoded if len(ids) == 1}))
        if not self.stops:
            raise InputError(
                "the target names no token that ends an answer (eos_token_id of generation_config.json),"
                " and its chat template writes none; name it there"
            )
        self.identity = hash_json(
            [
                self._template.source,
                settings.template_arguments,
                settings.date,
                list(map(list, settings.reasoning_markers)),
            ]
        )
        """Of what decides how a conversation goes on after its first answer."""

    def first(self, conversation: Conversation) -> Prompt:
        """Raises DropError where the template refuses it, BadRowError where it comes to no end."""
        text = self._render(conversation.opening, conversation.tools)
        return Prompt(self._backend.encode(text, [])[0], text)

    def message(self, turn: Turn) -> Message:
        """An answer as a message of the conversation, its reasoning apart as a server's parser would have
        it."""
        text = self._backend.decode(turn.text_ids)
        reasoning, answer = self._markers.split(text)
        if not reasoning and answer == text.strip():
            return {"role": "assistant", "content": text}
        return {"role": "assistant", "content": answer, **dict.fromkeys(REASONING_FIELDS, reasoning)}

    def says_nothing(self, turn: Turn) -> bool:
        text = self._backend.decode(turn.text_ids)
        return not self._markers.without_scaffold(text.strip()).strip()

    def next(
        self, conversation: Conversation, answers: Sequence[Message], last: Prompt, turn: Turn
    ) -> Prompt | None:
        """The prompt that follows `turn`, the answer to `last`; None if nothing more is asked. `answers` are
        all so far, as messages. Raises EndError."""
        if len(answers) > len(conversation.further):
            return None
        if turn.is_cut or self.says_nothing(turn):
            raise EndError("answers-ended")
        if conversation.tools and self._call and self._call in self._backend.decode(turn.text_ids):
            raise EndError("tool-call")
        messages = list(conversation.opening)
        for answer, said in zip(answers, conversation.further, strict=False):
            messages += [answer, *said]
        try:
            text = self._render(messages, conversation.tools)
        except (DropError, BadRowError):
            raise EndError("template-refused") from None
        seen = [*last.ids, *turn.answer]
        ended = self._backend.decode(turn.answer[-1:])
        shown = last.text + self._backend.decode(turn.answer)
        if text.startswith(shown):
            try:
                rest = encode_behind(self._backend, ended, text[len(shown) :], [])[0]
                return Prompt([*seen, *rest], text, len(seen))
            except DropError:
                pass  # the token that ended the answer merges with what follows it
        if str(answers[-1]["content"]).strip() not in text:
            raise EndError("not-shown")
        ids = self._backend.encode(text, [])[0]
        pairs = zip(ids, seen, strict=False)
        kept = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(ids), len(seen)))
        return Prompt(ids, text, kept)

    def _render(self, messages: Sequence[Message], tools: Tools) -> str:
        return self._template.render(self._template.style.prepare(messages), tools, generation_prompt=True)

    def _opening_of_a_call(self) -> str:
        """How an answer that calls a tool begins, as far as the template tells; empty if it does not."""
        prepare: Any = self._template.style.prepare
        called = self._template.attempt(*prepare([USER, CALLING]), tools=TOOLS)
        asked = self._template.attempt(*prepare([USER]), tools=TOOLS, generation_prompt=True)
        if not asked or not called.startswith(asked) or NAME not in called[len(asked) :]:
            return ""
        opening = called[len(asked) :].partition(NAME)[0]
        found = re.match(r"\s*(\S{2,}?)(?=[\s\"']|$)", opening)
        return found[1] if found else ""
