"""One row in, its samples out: the work of a worker process. No file is touched and nothing is remembered
between rows."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from eagle3_data.config import Data, Tokenization
from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes
from eagle3_data.tokenization.encoder import Encoded, SpanEncoder
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers
from eagle3_data.tokenization.masking.template import ChatTemplate, probing
from eagle3_data.tokenization.masking.turns import Rendering, TurnLocator
from eagle3_data.tokenization.reading.layouts import own_name, read_row
from eagle3_data.tokenization.reading.messages import SHOWN
from eagle3_data.tokenization.reading.near_duplicates import signature_of
from eagle3_data.tokenization.reading.rows import (
    BadRowError,
    Content,
    Conversation,
    Drop,
    DropError,
    FormattedText,
    Outcome,
    Row,
    Sample,
    TokenizedRow,
)
from eagle3_data.tokenization.reading.sources import is_drawn
from eagle3_data.tokenization.start_encoder import StartEncoder
from eagle3_data.tokenization.tokenizer import TargetTokenizer

NO_TEMPLATE = (
    "the target has no chat template, and {what}; put the model's chat_template.jinja into its directory, or"
    " name a file in tokenization.chat_template{or_else}"
)

UNREADABLE = {
    UnicodeEncodeError: "the text holds half of a character (a lone surrogate)",
    RecursionError: "nested too deeply",
}
"""What errors say of the row that causes them."""


class RowTokenizer:
    """Turns rows into outcomes. Every row gets one, whatever it holds; InputError is for faults of the target
    or the configuration."""

    def __init__(self, tokenizer: TargetTokenizer, data: Data, settings: Tokenization) -> None:
        self._tokenizer = tokenizer
        self._data = data
        self._settings = settings
        markers = ReasoningMarkers(settings.reasoning_markers)
        with probing():
            self._tools = (
                (tokenizer.template, TurnLocator(tokenizer.template, markers)) if tokenizer.template else None
            )
        self._encoder = StartEncoder(SpanEncoder(tokenizer.backend), settings.max_length)

    @property
    def uses_generation_tags(self) -> bool:
        return self._tools is not None and self._tools[1].uses_generation_tags

    def __call__(self, row: Row) -> Outcome:
        """The row's fate. Raises InputError if the layout needs a chat template and the target has none."""
        source = self._data.sources[row.source]
        if not is_drawn(source, row.index):
            return Outcome(row.source, row.index, dropped=(Drop("", "not-drawn"),))
        name = ""
        try:
            value = _value(row)
            name = own_name(value)
            content = read_row(value, source)
            samples, dropped = self._samples(content, trained=source.trained)
            signature = signature_of(content) if self._settings.near_duplicates and samples else None
            whole = isinstance(content, TokenizedRow) and content.whole
            return Outcome(
                row.source,
                row.index,
                name,
                samples,
                dropped,
                signature=signature,
                whole=whole,
                notices=content.notices,
            )
        except (BadRowError, UnicodeEncodeError, RecursionError) as error:
            told = str(error) if isinstance(error, BadRowError) else UNREADABLE[type(error)]
            return Outcome(
                row.source,
                row.index,
                name,
                dropped=(Drop("", "bad-row", told),),
                error=f"{row.place}: {told}",
            )
        except DropError as drop:
            return Outcome(row.source, row.index, name, dropped=(Drop("", drop.reason, drop.detail),))
        except MemoryError:
            raise InputError(
                f"{source.path}, {row.place}: there is not enough memory to tokenize this row; give the rule"
                " more, or take the row out"
            ) from None
        except Exception as error:
            error.add_note(f"while tokenizing {source.path}, {row.place}")
            raise

    def _samples(self, content: Content, trained: str) -> tuple[tuple[Sample, ...], tuple[Drop, ...]]:
        if isinstance(content, TokenizedRow):
            return (self._sample("", Encoded(content.ids, content.mask)),), ()
        if isinstance(content, FormattedText):
            return (self._sample("", self._encode_formatted(content.text, trained)),), ()
        samples, dropped = [], []
        for suffix, part, wanted in self._parts(content):
            try:
                samples.append(self._sample(suffix, self._encode_turns(part, wanted)))
            except DropError as drop:
                dropped.append(Drop(suffix, drop.reason, drop.detail))
        return tuple(samples), tuple(dropped)

    def _parts(self, conversation: Conversation) -> Iterator[tuple[str, Conversation, Sequence[int]]]:
        """What to make of a conversation by `train_on`: suffix of the sample id, part of the conversation,
        the turns to train."""
        template, locator = self._templating("conversations need one")
        messages = template.call_style.prepare(conversation.messages)
        assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if not assistants:
            raise DropError("no-assistant-turn")
        wanted = [index for index in assistants if locator.says_something(messages[index])]
        if not wanted:
            raise DropError("empty", "no turn of the assistant says anything")
        wanted = [index for index in wanted if index not in conversation.untrained]
        if not wanted:
            raise DropError("untrained")
        if self._settings.train_on == "each":
            for index in wanted:
                yield f":{index}", Conversation(messages[: index + 1], conversation.tools), [index]
        else:
            # what follows the last trained turn would cost prefill and train nothing
            part = Conversation(messages[: wanted[-1] + 1], conversation.tools)
            yield "", part, wanted if self._settings.train_on == "all" else wanted[-1:]

    def _encode_turns(self, conversation: Conversation, wanted: Sequence[int]) -> Encoded:
        _, locator = self._templating("conversations need one")
        return self._encode(locator.locate(conversation.messages, conversation.tools, wanted))

    def _encode_formatted(self, text: str, trained: str) -> Encoded:
        if trained == "all":
            encoded = self._encoder.encode(text, [(0, len(text))])
        else:
            _, locator = self._templating(
                "the assistant's turns in a text are found by it", ", or set the source's `trained: all`"
            )
            rendering = locator.locate_in_text(text)
            if not rendering.spans:
                raise DropError(
                    "no-assistant-turn",
                    "the text has no turn as the target's chat template writes it; for plain text set the"
                    " source's `trained: all`",
                )
            encoded = self._encode(rendering)
        prefix = list(self._tokenizer.prefix)
        if encoded.ids[: len(prefix)] == prefix:
            return encoded
        return replace(encoded, ids=prefix + encoded.ids, mask=bytes(len(prefix)) + encoded.mask)

    def _encode(self, rendering: Rendering) -> Encoded:
        with_end = self._settings.train_end_of_turn
        return self._encoder.encode(
            rendering.text, [(span.start, span.end if with_end else span.stop) for span in rendering.spans]
        )

    def _sample(self, suffix: str, encoded: Encoded) -> Sample:
        return make_sample(suffix, encoded, self._settings, self._tokenizer.vocab_size)

    def _templating(self, what: str, or_else: str = "") -> tuple[ChatTemplate, TurnLocator]:
        if self._tools is None:
            raise InputError(NO_TEMPLATE.format(what=what, or_else=or_else))
        return self._tools


def make_sample(suffix: str, encoded: Encoded, settings: Tokenization, vocab_size: int) -> Sample:
    """Apply the limits. Raises DropError: too long, nothing left that is trained and has a token before it,
    or an id without embedding."""
    length = len(encoded.ids)
    told = f"{length} tokens and more" if encoded.cut else f"{length} tokens"
    if length > settings.max_length and settings.too_long == "drop":
        raise DropError("too-long", told)
    ids, mask = encoded.ids[: settings.max_length], encoded.mask[: settings.max_length]
    if 1 not in mask[1:]:
        raise DropError("no-trained-token", told)
    if (highest := max(ids)) >= vocab_size:
        raise DropError("outside-vocabulary", f"id {highest}, the target has {vocab_size}")
    data = array("i", ids)
    if sys.byteorder == "big":
        data.byteswap()
    packed = data.tobytes()
    return Sample(suffix, hash_bytes(packed), packed, mask, truncated=length > settings.max_length)


def _value(row: Row) -> Any:
    if row.fault:
        raise BadRowError(row.fault)
    if row.text is None:
        return row.value
    try:
        return json.loads(row.text, object_pairs_hook=_without_repeated_keys)
    except UnicodeDecodeError:
        raise BadRowError("not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadRowError(
            f"not valid JSON (character {error.pos + 1}: {error.msg}); expected one object a line, or one"
            " array of objects in the file"
        ) from None
    except ValueError:  # Python refuses it, lest a few bytes keep it busy
        raise BadRowError("not valid JSON: an integer of too many digits") from None


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Of a key that is there twice it is not clear which value is meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise BadRowError(f"an object has the key {repeated[:SHOWN]!r} twice")
    return found
