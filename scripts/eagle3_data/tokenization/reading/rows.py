"""What a row of a source becomes on its way to a sample, and the two ways in which it can fail. Standard
library only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_data.records import JsonObject

REASONS = {
    "bad-row": "the row cannot be read as its layout says",
    "not-drawn": "left out by the source's weight",
    "empty": "the conversation has no turns, or every assistant turn is empty",
    "no-assistant-turn": "no assistant turn to train on",
    "untrained": "the data marks every assistant turn as not to be trained",
    "rejected-answer": "the data marks the answer as rejected",
    "multimodal": (
        "the row has images, video or audio; to train on its text alone, set the source's `multimodal: keep`"
    ),
    "template-refused": "the target's chat template raised an error",
    "not-shown": "the chat template does not show all that the turn says",
    "rewritten": "the chat template changes the turn's text",
    "unclear-turn": "where the turn begins or ends is not certain",
    "token-mismatch": "the trained tokens would not read as the turn's text",
    "outside-vocabulary": "a token id beyond the target model's vocabulary",
    "no-trained-token": "no trained token within tokenization.max_length, or nothing precedes it",
    "too-long": "longer than tokenization.max_length",
    "duplicate": "same token ids as an earlier sample",
    "near-duplicate": "almost the same turns as an earlier row",
    "not-asked": "nothing to ask the target: text, token ids, or no turn of a user",
    "no-room": "the question leaves no room for an answer within tokenization.max_length",
    "tool-result": "the conversation goes on with the result of a tool (generation.tools: drop)",
    "not-answered": "the target has not answered it; extraction.max_failed_fraction allows that",
    "empty-answer": "the target's answer is empty",
    "cut-answer": "the target's answer was cut (generation.cut_answers: drop)",
    "looping-answer": "the target's answer was cut in the middle of repetitions",
}
"""Reason codes of the ledger, and what they mean."""

NOTICES = {
    "ignored-field": (
        "a field that has a meaning in known data sets is not used; if it belongs to the prompt, name it in"
        " the source's `system_field`, `input_field` or `tools_field`"
    ),
    "missing-field": "no row has this field, which the configuration names",
    "untrained-turn": "assistant turns that the data marks as not to be trained are only context",
    "training-flag": "the data marks turns of others as trained; only assistant turns are",
    "chosen-answer": "of a chosen and a rejected answer, the chosen one is trained",
    "hidden-reasoning": (
        "the chat template does not show the reasoning of trained turns;"
        " `tokenization.hidden_reasoning: own_row` gives each a row in which it does"
    ),
    "rewritten-call-id": "tool call ids are rewritten to the form that the chat template requires",
    "text-of-multimodal": "images, video or audio are left out, and the text is kept",
    "tool-result": (
        "the conversation is cut before the result of a tool, which the target's own call would not have"
        " produced"
    ),
    "tool-call": "the conversation ends with the target's call of a tool, whose result nobody has",
    "cut-answer": "the target's answer was cut and is trained without an end; the conversation ends there",
    "looping-answer": "the target's answer was cut in the middle of repetitions, and is trained",
    "answers-ended": "further questions are not asked, since an answer is empty or was cut",
    "no-room": "further questions are not asked, since they leave no room within tokenization.max_length",
    "not-shown": "further questions are not asked, since the chat template does not show the answer",
    "template-refused": "further questions are not asked, since the chat template refuses the answer",
    "changed-history": "the chat template changes earlier answers, so later ones are samples of their own",
}
"""What may be said of kept rows, in the ledger and in the summary."""


class BadRowError(Exception):
    """The row does not have the form that its layout promises: an error, or with `on_bad_row: drop` a
    fate."""


class DropError(Exception):
    """The row is well-formed and cannot be trained on. `reason` is a key of REASONS, `detail` says where."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Row:
    """A row as its reader found it. `place` is for people ("line 12"); `text` is JSON still to be parsed,
    else `value` is the row.

    `fault`: why the reader could not make a value of it.
    """

    source: int
    index: int
    place: str
    text: bytes | str | None = None
    value: Any = None
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Notice:
    """What is to be said of a kept row: a key of NOTICES, the field that it is about, and how often it holds
    in this row."""

    code: str
    name: str = ""
    count: int = 1

    @property
    def label(self) -> str:
        return f"{self.code} {self.name}" if self.name else self.code


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in OpenAI's form: roles system, user, assistant and tool; content a string, None only beside
    tool calls.

    `untrained`: indices of the assistant's messages that the data marks as context only.
    """

    messages: list[JsonObject]
    tools: list[JsonObject] | None = None
    untrained: frozenset[int] = frozenset()
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class FormattedText:
    """A conversation to which the chat template has been applied already, or plain text."""

    text: str
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenizedRow:
    """Token ids [T] and their loss mask [T] of 0 and 1, made elsewhere. `whole`: the row has no mask, so all
    of it is trained."""

    ids: list[int]
    mask: bytes
    whole: bool = False
    notices: tuple[Notice, ...] = ()


Content = Conversation | FormattedText | TokenizedRow


@dataclass(frozen=True, slots=True)
class Sample:
    """A row of the training set. `ids` are little-endian int32, `mask` one byte a token; `key` addresses the
    hidden states."""

    suffix: str
    key: str
    ids: bytes
    mask: bytes
    truncated: bool = False

    @property
    def tokens(self) -> int:
        return len(self.mask)

    @property
    def trained_tokens(self) -> int:
        return self.mask.count(1)


@dataclass(frozen=True, slots=True)
class Drop:
    """Why a sample, or with an empty suffix a whole row, was dropped."""

    suffix: str
    reason: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one row: samples, or why there are none.

    `error` tells where and why a row is bad, for a run that stops there. `signature` is the row's MinHash, if
    near duplicates are looked for. `whole`: token ids that came without a mask. `notices` say what the row
    lost although it is kept.
    """

    source: int
    index: int
    file_id: str = ""
    samples: tuple[Sample, ...] = ()
    dropped: tuple[Drop, ...] = ()
    error: str = ""
    signature: Any = None
    whole: bool = False
    notices: tuple[Notice, ...] = ()
