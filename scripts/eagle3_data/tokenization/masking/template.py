"""The target's chat template: rendering, and what a few renderings of a made-up conversation teach about it.

Nothing here knows any model's template. What differs between templates (what opens and closes a turn, what
stands between the generation prompt and the answer, the form of tool calls) is found by rendering and
looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from transformers.utils.chat_template_utils import render_jinja_template

from eagle3_data.bounds import RunawayError, call_bounded
from eagle3_data.errors import InputError, headline
from eagle3_data.tokenization.masking.call_style import CallStyle, Message
from eagle3_data.tokenization.reading.rows import BadRowError, DropError

MARK = "\ue0f1c\ue0f2"
REASONING_MARK = "\ue0f1r\ue0f2"
NEXT_MARK = "\ue0f1n\ue0f2"
"""Stand in for a text whose place in a rendering is looked for. Private-use characters: never part of a
template's syntax."""

MOST_CHARACTERS = 200
"""Of a template's error message that are kept."""

TEMPLATE_ERRORS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What a template raises on purpose (`raise_exception`) or because a message is not of the form it
expects."""


@contextmanager
def probing() -> Iterator[None]:
    """For a block that renders made-up conversations: raises InputError if the template does not come to an
    end."""
    try:
        yield
    except BadRowError as error:
        raise InputError(
            f"{error}, while rendering a short conversation; correct the template, or name another file in"
            " tokenization.chat_template"
        ) from None


class ChatTemplate:
    """Renders conversations as `tokenizer.apply_chat_template(tokenize=False)` does, without its cost per
    call.

    `stops`: texts of the tokens that end a turn, `closers`: of those with which the template itself closes
    one. `header`: what opens an assistant's turn in history, too, and `header_rest` what else the generation
    prompt has. `lead`: what the model writes before a plain answer, such as the name of a channel. The last
    two are mostly empty. `added_tokens`: texts of all added tokens, `control_tokens`: of those that separate
    turns.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        *,
        today: date,
        stop_texts: Sequence[str],
        added_tokens: Sequence[str],
        own_way: Callable[..., str] | None = None,
        name: str = "the target's chat template",
    ) -> None:
        """`variables` are the tokenizer's special tokens and the user's arguments; `stop_texts` the target's
        own stop tokens, `added_tokens` all added ones.

        `own_way`: the tokenizer's `apply_chat_template`, where its class has one of its own. Kimi K2.5's
        writes tools in its own notation and hands them to the template.
        """
        self.source = source
        self.name = name
        self._variables = {**variables, "strftime_now": today.strftime}
        self._own_way = own_way
        self._check_syntax()
        self.call_style = CallStyle.learn(lambda messages: self.attempt(*messages))
        self.added_tokens = tuple(added_tokens)
        self.closers = tuple(self._closing_tokens(added_tokens))
        self.stops = tuple(dict.fromkeys(filter(None, (*stop_texts, *self.closers))))
        self.header, self.header_rest, self.lead = self._learn_opening(added_tokens)
        rendered = self.attempt(USER, ANSWER, USER)
        self.control_tokens = [token for token in added_tokens if token and token in rendered]

    @property
    def has_generation_tags(self) -> bool:
        return "endgeneration" in self.source and self._own_way is None

    def render(
        self,
        messages: Sequence[Message],
        tools: list[dict[str, Any]] | None = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """The conversation as text. Raises DropError("template-refused") with the template's own message, and
        BadRowError if the template does not come to an end with it."""
        options = {
            "tools": tools,
            "chat_template": self.source,
            "add_generation_prompt": generation_prompt,
            **self._variables,
        }
        try:
            return call_bounded(lambda: self._rendered(messages, options))
        except RunawayError as error:
            raise BadRowError(f"{self.name} {error}") from None
        except TEMPLATE_ERRORS as error:
            raise DropError("template-refused", headline(error)[:MOST_CHARACTERS]) from error

    def _rendered(self, messages: Sequence[Message], options: dict[str, Any]) -> str:
        if self._own_way:
            return str(self._own_way(list(messages), tokenize=False, **options))
        return str(render_jinja_template([messages], **options)[0][0])

    def attempt(self, *messages: Message, generation_prompt: bool = False) -> str:
        """The conversation as text, empty if the template refuses it."""
        try:
            return self.render(messages, generation_prompt=generation_prompt)
        except DropError:
            return ""

    def render_tagged(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None
    ) -> list[tuple[int, int]]:
        """Character spans that the template itself marks with `{% generation %}`, in the text that `render`
        gives. Raises DropError."""
        try:
            spans: list[tuple[int, int]] = call_bounded(
                lambda: render_jinja_template(
                    [messages],
                    tools=tools,
                    chat_template=self.source,
                    return_assistant_tokens_mask=True,
                    **self._variables,
                )[1][0]
            )
        except RunawayError as error:
            raise BadRowError(f"{self.name} {error}") from None
        except TEMPLATE_ERRORS as error:
            raise DropError("template-refused", headline(error)[:MOST_CHARACTERS]) from error
        return spans

    def find_stop(self, text: str, start: int, end: int) -> tuple[int, int] | None:
        """Span of the first stop token in text[start:end], the longest where two start together."""
        found = [(text.find(stop, start, end), -len(stop)) for stop in self.stops]
        hits = [hit for hit in found if hit[0] >= 0]
        if not hits:
            return None
        position, length = min(hits)
        return position, position - length

    def stop_at(self, text: str, position: int) -> str:
        """The stop token at `position`, the longest if several; empty if there is none."""
        return max((stop for stop in self.stops if text.startswith(stop, position)), key=len, default="")

    def stop_at_end(self, text: str) -> str:
        """The stop token with which `text` ends, the longest if several; empty if there is none."""
        return max((stop for stop in self.stops if text.endswith(stop)), key=len, default="")

    def _check_syntax(self) -> None:
        try:
            self.render([USER])
        except DropError as drop:
            if isinstance(drop.__cause__, TemplateSyntaxError):
                error = drop.__cause__
                raise InputError(
                    f"the chat template is not valid Jinja: line {error.lineno}: {error.message}; correct it"
                ) from None

    # What made-up conversations teach

    def _closing_tokens(self, added_tokens: Sequence[str]) -> list[str]:
        """The added token, if any, that directly closes an assistant turn, inside a conversation and at its
        end."""
        next_question = {**USER, "content": NEXT_MARK}
        inside = self.attempt(USER, ANSWER, next_question).partition(MARK)[2].partition(NEXT_MARK)[0]
        if self.attempt(next_question).partition(NEXT_MARK)[0].endswith(inside):
            inside = ""  # nothing but what opens the next turn
        at_end = self.attempt(USER, ANSWER).partition(MARK)[2]
        closing = (
            [token for token in added_tokens if token and tail.lstrip().startswith(token)]
            for tail in (inside, at_end)
        )
        return [max(tokens, key=len) for tokens in closing if tokens]

    def _learn_opening(self, added_tokens: Sequence[str]) -> tuple[str, str, str]:
        """Header, its rest and lead: the generation prompt as far as history has it, too; what follows there;
        what is written before an answer."""
        user, prompted = self.attempt(USER), self.attempt(USER, generation_prompt=True)
        answered, history = (
            self.attempt(USER, ANSWER).partition(MARK)[0],
            self.attempt(USER, ANSWER, USER).partition(MARK)[0],
        )
        lead = answered[len(prompted) :] if prompted and answered.startswith(prompted) else ""
        if not user or not prompted.startswith(user) or not history.startswith(user):
            return "", "", lead
        prompt, opening = prompted[len(user) :], history[len(user) :]
        length = next(
            (i for i, (one, other) in enumerate(zip(prompt, opening, strict=False)) if one != other),
            min(len(prompt), len(opening)),
        )
        for token in added_tokens:  # `<think>` and `</think>` begin alike, and are no common text for that
            for text in (prompt, opening):
                start = text.find(token, max(0, length - len(token) + 1))
                length = start if 0 <= start < length < start + len(token) else length
        return prompt[:length], prompt[length:], lead


USER: Message = {"role": "user", "content": "q"}
ANSWER: Message = {"role": "assistant", "content": MARK}
