"""One row in, its samples out: the work of a worker process. No file is touched and nothing is remembered
between rows."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eagle3_data.config import Data, Tokenization
from eagle3_data.errors import InputError
from eagle3_data.hashing import hash_bytes
from eagle3_data.records import JsonObject
from eagle3_data.tokenization.encoder import Encoded, SpanEncoder
from eagle3_data.tokenization.masking.grammar import Span
from eagle3_data.tokenization.masking.reasoning import ReasoningMarkers
from eagle3_data.tokenization.masking.style import Message, Tools
from eagle3_data.tokenization.masking.template import ChatTemplate, probing
from eagle3_data.tokenization.masking.turns import TurnLocator
from eagle3_data.tokenization.reading.layouts import own_name, read_row
from eagle3_data.tokenization.reading.messages import SHOWN
from eagle3_data.tokenization.reading.near_duplicates import signature_of
from eagle3_data.tokenization.reading.rows import (
    BadRowError,
    Content,
    Drop,
    DropError,
    FormattedText,
    Notice,
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


@dataclass
class Made:
    """What a row gives."""

    samples: list[Sample] = field(default_factory=list)
    dropped: list[Drop] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class RowTokenizer:
    """Turns rows into outcomes. Every row gets one, whatever it holds; InputError is for faults of the target
    or the configuration. `generation` describes where answers come from that are not the data set's."""

    generation: JsonObject = {}  # noqa: RUF012  never changed

    def __init__(self, tokenizer: TargetTokenizer, data: Data, settings: Tokenization) -> None:
        self._tokenizer = tokenizer
        self._data = data
        self._settings = settings
        markers = ReasoningMarkers(settings.reasoning_markers)
        template = tokenizer.template
        with probing():
            self._tools = (template, TurnLocator(template, markers)) if template else None
        encoder = SpanEncoder(tokenizer.backend, template.control_tokens if template else ())
        self._encoder = StartEncoder(encoder, settings.max_length)

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts of the tokens that end a turn."""
        return self._tools[1].grammar.stops if self._tools else ()

    def __call__(self, row: Row) -> Outcome:
        """What becomes of the row. Raises InputError if it needs a chat template and there is none."""
        source = self._data.sources[row.source]
        if not is_drawn(source, row.index):
            return Outcome(row.source, row.index, dropped=(Drop("", "not-drawn"),))
        name = ""
        try:
            value = _value(row)
            name = own_name(value)
            content = read_row(value, source)
            made = self.samples_of(content, source.trained)
            signature = signature_of(content) if self._settings.near_duplicates and made.samples else None
            whole = isinstance(content, TokenizedRow) and content.whole
            return Outcome(
                row.source,
                row.index,
                name,
                tuple(made.samples),
                tuple(made.dropped),
                signature=signature,
                whole=whole,
                notices=(*content.notices, *made.notices),
            )
        except (BadRowError, UnicodeEncodeError, RecursionError) as error:
            detail = str(error) if isinstance(error, BadRowError) else UNREADABLE[type(error)]
            return Outcome(
                row.source,
                row.index,
                name,
                dropped=(Drop("", "bad-row", detail),),
                error=f"{row.place}: {detail}",
            )
        except DropError as drop:
            return Outcome(row.source, row.index, name, dropped=(Drop("", drop.reason, drop.detail),))
        except MemoryError:
            raise InputError(
                f"{source.path}, {row.place}: not enough memory to tokenize this row; give the rule more, or"
                " remove the row"
            ) from None
        except Exception as error:
            error.add_note(f"while tokenizing {source.path}, {row.place}")
            raise

    def samples_of(self, content: Content, trained: str) -> Made:
        """The samples of a row's content. Raises DropError, BadRowError."""
        if isinstance(content, TokenizedRow):
            return Made([self._sample("", Encoded(content.ids, content.mask))])
        if isinstance(content, FormattedText):
            encoded, unclear = self._encode_formatted(content.text, trained)
            return Made([self._sample("", encoded)], _drops(unclear))
        template, _ = self._templating("conversations need one")
        messages = template.style.prepare(content.messages)
        made = Made()
        for suffix, length, wanted in self._parts(messages, content.untrained):
            try:
                self._train(made, suffix, messages[:length], content.tools, wanted)
            except DropError as drop:
                made.dropped.append(Drop(suffix, drop.reason, drop.detail))
        rewritten = template.style.rewritten_ids(content.messages, messages)
        if rewritten:
            made.notices.append(Notice("rewritten-call-id", count=rewritten))
        return made

    def _parts(
        self, messages: Sequence[Message], untrained: frozenset[int]
    ) -> Iterator[tuple[str, int, Sequence[int]]]:
        """What to make of a conversation by `train_on`: suffix of the sample id, how many of the messages,
        the turns to train."""
        _, locator = self._templating("conversations need one")
        assistants = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if not assistants:
            raise DropError("no-assistant-turn")
        wanted = [index for index in assistants if locator.says_something(messages[index])]
        if not wanted:
            raise DropError("empty", "no turn of the assistant says anything")
        wanted = [index for index in wanted if index not in untrained]
        if not wanted:
            raise DropError("untrained")
        if self._settings.train_on == "each":
            for index in wanted:
                yield f":{index}", index + 1, [index]
        else:
            # what follows the last trained turn would cost prefill and train nothing
            yield "", wanted[-1] + 1, wanted if self._settings.train_on == "all" else wanted[-1:]

    def _train(
        self, made: Made, suffix: str, messages: Sequence[Message], tools: Tools, wanted: Sequence[int]
    ) -> None:
        """Add the sample of `messages` in which the turns `wanted` are trained, and say which cannot be.
        Raises DropError if nothing is left, or with `on_unclear_turn: drop` if a turn is unclear."""
        _, locator = self._templating("conversations need one")
        rendering = locator.locate(messages, tools, wanted)
        own_rows = self._own_rows(rendering.hidden_reasoning, messages, tools)
        turns = {index: span for index, span in rendering.turns.items() if index not in own_rows}
        encoded, faults = self._encode(rendering.text, turns)
        unclear = dict(sorted({**rendering.unclear, **faults}.items()))
        nothing_left = len(faults) == len(turns) and not own_rows
        if unclear and (nothing_left or self._settings.on_unclear_turn == "drop"):
            raise next(iter(unclear.values()))
        made.samples += own_rows.values()
        made.dropped += _drops(unclear)
        if hidden := sum(index in turns for index in rendering.hidden_reasoning):
            made.notices.append(Notice("hidden-reasoning", count=hidden))
        if turns:
            made.samples.append(self._sample(suffix, encoded))

    def _own_rows(
        self, hidden: Sequence[int], messages: Sequence[Message], tools: Tools
    ) -> dict[int, Sample]:
        """With `hidden_reasoning: own_row`, samples of the turns whose reasoning the template shows where
        they come last, and only there."""
        _, locator = self._templating("conversations need one")
        samples = {}
        for index in hidden if self._settings.hidden_reasoning == "own_row" else ():
            alone = locator.locate(messages[: index + 1], tools, [index])
            encoded, faults = self._encode(alone.text, alone.turns)
            if index + 1 < len(messages) and alone.turns and not alone.hidden_reasoning and not faults:
                with suppress(DropError):  # too long, say: then it is trained without its reasoning
                    samples[index] = self._sample(f":{index}", encoded)
        return samples

    def _encode_formatted(self, text: str, trained: str) -> tuple[Encoded, Mapping[int, DropError]]:
        """Ids and mask, and the turns that are left untrained."""
        unclear: Mapping[int, DropError] = {}
        if trained == "all":
            encoded = self._encoder.encode(text, [(0, len(text))])
        else:
            _, locator = self._templating(
                "the assistant's turns in a text are found by it", ", or set the source's `trained: all`"
            )
            rendering = locator.locate_in_text(text)
            unclear = rendering.unclear
            if unclear and (not rendering.turns or self._settings.on_unclear_turn == "drop"):
                raise next(iter(unclear.values()))
            if not rendering.turns:
                raise DropError(
                    "no-assistant-turn",
                    "the text has no turn as the target's chat template writes it; for plain text set the"
                    " source's `trained: all`",
                )
            encoded, faults = self._encode(rendering.text, rendering.turns)
            if faults:
                raise next(iter(faults.values()))
        prefix = list(self._tokenizer.prefix)
        if encoded.ids[: len(prefix)] != prefix:
            encoded = replace(encoded, ids=prefix + encoded.ids, mask=bytes(len(prefix)) + encoded.mask)
        return encoded, unclear

    def _encode(self, text: str, turns: Mapping[int, Span]) -> tuple[Encoded, dict[int, DropError]]:
        """Ids and mask, and the turns whose tokens cannot be trained."""
        with_end = self._settings.train_end_of_turn
        encoded = self._encoder.encode(
            text, [(span.start, span.end if with_end else span.stop) for span in turns.values()]
        )
        indices = list(turns)
        return encoded, {indices[number]: fault for number, fault in encoded.faults.items()}

    def _sample(self, suffix: str, encoded: Encoded) -> Sample:
        return make_sample(suffix, encoded, self._settings, self._tokenizer.vocab_size)

    def _templating(self, what: str, or_else: str = "") -> tuple[ChatTemplate, TurnLocator]:
        if self._tools is None:
            raise InputError(NO_TEMPLATE.format(what=what, or_else=or_else))
        return self._tools


def _drops(unclear: Mapping[int, DropError]) -> list[Drop]:
    """What the ledger says of turns that are left untrained, by their indices."""
    return [Drop(f":{index}", drop.reason, drop.detail) for index, drop in unclear.items()]


def make_sample(suffix: str, encoded: Encoded, settings: Tokenization, vocab_size: int) -> Sample:
    """Apply the limits. Raises DropError: too long, nothing left that is trained and has a token before it,
    or an id without embedding."""
    ids, mask, length = encoded.ids, encoded.mask, len(encoded.ids)
    detail = f"{length} tokens and more" if encoded.cut else f"{length} tokens"
    if length > settings.max_length and settings.too_long == "drop":
        raise DropError("too-long", detail)
    if length > settings.max_length:
        ids, mask = ids[: settings.max_length], mask[: settings.max_length]
    if mask.find(1, 1) < 0:
        raise DropError("no-trained-token", detail)
    packed, highest = _packed(ids)
    if highest >= vocab_size:
        raise DropError("outside-vocabulary", f"id {highest}, the target has {vocab_size}")
    return Sample(suffix, hash_bytes(packed), packed, mask, truncated=length > settings.max_length)


def _packed(ids: Sequence[int]) -> tuple[bytes, int]:
    """The ids as little-endian int32, and the highest."""
    try:
        packed = struct.pack(f"<{len(ids)}i", *ids)
    except struct.error:  # one has more bits; `array` and numpy take several times as long for a list
        return b"", max(ids)
    return packed, int(np.frombuffer(packed, "<i4").max())


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


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> JsonObject:
    """A JSON object. Of a key that is there twice it is not clear which value is meant."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise BadRowError(f"an object has the key {repeated[:SHOWN]!r} twice")
    return found
