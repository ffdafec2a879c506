"""One row in, its samples out: the work of a worker process. No file is touched and nothing is remembered between rows."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from eagle3_data.config import Data, Tokenization
from eagle3_data.hashing import hash_bytes
from eagle3_data.tokenization.encoder import SpanEncoder
from eagle3_data.tokenization.layouts import file_id, read_row
from eagle3_data.tokenization.rows import BadRowError, Conversation, DropError, Outcome, Row, Sample
from eagle3_data.tokenization.tokenizer import TargetTokenizer
from eagle3_data.tokenization.turns import TurnLocator


class RowTokenizer:
    """Turns rows into outcomes. Every row gets one; none is lost and none raises, whatever it holds."""

    def __init__(self, tokenizer: TargetTokenizer, data: Data, settings: Tokenization) -> None:
        self._data = data
        self._settings = settings
        self._template = tokenizer.template
        self._locator = TurnLocator(tokenizer.template, settings.reasoning_markers) if tokenizer.template else None
        self._encoder = SpanEncoder(tokenizer.backend)

    def __call__(self, row: Row) -> Outcome:
        name = ""
        try:
            value = _value(row)
            name = file_id(value)
            samples, dropped = [], []
            for suffix, attempt in self._attempts(read_row(value, self._data.sources[row.source])):
                try:
                    samples.append(self._sample(suffix, *attempt))
                except DropError as drop:
                    dropped.append((suffix, drop.reason, drop.detail))
            return Outcome(row.source, row.index, name, tuple(samples), tuple(dropped))
        except BadRowError as error:
            return Outcome(row.source, row.index, name, dropped=(("", "bad-row", str(error)),), error=f"{row.place}: {error}")
        except DropError as drop:
            return Outcome(row.source, row.index, name, dropped=(("", drop.reason, drop.detail),))

    def _attempts(self, conversation: Conversation) -> Iterator[tuple[str, tuple[Conversation, Sequence[int]]]]:
        """What to make of a conversation by `train_on`: (suffix of the sample id, (its part, the turns to train))."""
        assert self._template is not None and self._locator is not None
        messages = self._template.prepare(conversation.messages)
        assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if not assistants:
            raise DropError("no-assistant-turn", f"roles: {', '.join(message['role'] for message in messages[:8])}")
        wanted = [index for index in assistants if self._locator.says_something(messages[index])]
        if not wanted:
            raise DropError("empty", "no turn of the assistant says anything")
        if self._settings.train_on == "each":
            for index in wanted:
                yield f":{index}", (Conversation(messages[: index + 1], conversation.tools), [index])
        else:
            # what follows the last trained turn would cost prefill and train nothing
            part = Conversation(messages[: wanted[-1] + 1], conversation.tools)
            yield "", (part, wanted if self._settings.train_on == "all" else wanted[-1:])

    def _sample(self, suffix: str, conversation: Conversation, wanted: Sequence[int]) -> Sample:
        assert self._locator is not None
        rendering = self._locator.locate(conversation.messages, conversation.tools, wanted)
        spans = [(span.start, span.end if self._settings.train_end_of_turn else span.stop) for span in rendering.spans]
        encoded = self._encoder.encode(rendering.text, spans)
        return make_sample(suffix, encoded.ids, bytes(encoded.mask), self._settings)


def make_sample(suffix: str, ids: Sequence[int], mask: bytes, settings: Tokenization) -> Sample:
    """Apply the length limit. Raises DropError: too long, or nothing left that is trained and has a token before it."""
    longer = len(ids) > settings.max_length
    if longer and settings.too_long == "drop":
        raise DropError("too-long", f"{len(ids)} tokens")
    mask = mask[: settings.max_length]
    if 1 not in mask[1:]:
        raise DropError("no-trained-token", f"{len(ids)} tokens")
    data = array("i", ids[: settings.max_length])
    if sys.byteorder == "big":
        data.byteswap()
    packed = data.tobytes()
    return Sample(suffix, hash_bytes(packed), packed, mask, truncated=longer)


def _value(row: Row) -> Any:
    if row.text is None:
        return row.value
    try:
        return json.loads(row.text)
    except ValueError as error:
        where = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadRowError(f"not valid JSON{where}") from None
