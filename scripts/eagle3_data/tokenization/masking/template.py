"""The target's chat template: rendering, and the form in which it wants messages.

Nothing here knows any model's template. What differs between templates is found by rendering and looking.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError

from eagle3_data.errors import InputError, headline
from eagle3_data.system.bounds import RunawayError, call_bounded
from eagle3_data.tokenization.masking.compiled import compile_template
from eagle3_data.tokenization.masking.style import TOOLS, Message, MessageStyle, Tools
from eagle3_data.tokenization.reading.rows import BadRowError, DropError

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

QUESTION: Message = {"role": "user", "content": "q"}
ANSWER: Message = {"role": "assistant", "content": "a"}


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

    `stop_texts`: texts of the target's own stop tokens. `added_tokens`: of all added tokens,
    `control_tokens`: of those that separate turns. `style`: the form in which the template wants messages.
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
        """`variables` are the tokenizer's special tokens and the user's arguments.

        `own_way`: the tokenizer's `apply_chat_template`, where its class has one of its own. Kimi K2.5's
        writes tools in its own notation and hands them to the template.
        """
        self.source = source
        self.name = name
        self._variables = {**variables, "strftime_now": today.strftime}
        self._own_way = own_way
        self._check_syntax()
        self.style = MessageStyle.learn(self._attempt_with_tools)
        self.stop_texts = tuple(dict.fromkeys(filter(None, stop_texts)))
        self.added_tokens = tuple(filter(None, added_tokens))
        talk = self.style.prepare([QUESTION, ANSWER, QUESTION])
        rendered = self.attempt(*talk) or self.attempt(*talk, tools=TOOLS)
        self.control_tokens = [token for token in self.added_tokens if token in rendered]

    def render(
        self,
        messages: Sequence[Message],
        tools: Tools = None,
        *,
        generation_prompt: bool = False,
    ) -> str:
        """The conversation as text. Raises DropError("template-refused") with the template's own message, and
        BadRowError if the template does not come to an end with it."""
        try:
            return call_bounded(lambda: self._rendered(messages, tools, generation_prompt))
        except RunawayError as error:
            raise BadRowError(f"{self.name} {error}") from None
        except TEMPLATE_ERRORS as error:
            raise DropError("template-refused", headline(error)[:MOST_CHARACTERS]) from error

    def _rendered(self, messages: Sequence[Message], tools: Tools, generation_prompt: bool) -> str:
        options = {"tools": tools, "add_generation_prompt": generation_prompt, **self._variables}
        if self._own_way:
            return str(self._own_way(list(messages), tokenize=False, chat_template=self.source, **options))
        return compile_template(self.source).render(messages=messages, documents=None, **options)

    def attempt(
        self,
        *messages: Message,
        tools: Tools = None,
        generation_prompt: bool = False,
    ) -> str:
        """The conversation as text, empty if the template refuses it."""
        try:
            return self.render(messages, tools, generation_prompt=generation_prompt)
        except DropError:
            return ""

    def _attempt_with_tools(self, messages: Sequence[Message], tools: Tools) -> str:
        return self.attempt(*messages, tools=tools)

    def _check_syntax(self) -> None:
        try:
            self.render([QUESTION])
        except DropError as drop:
            if isinstance(drop.__cause__, TemplateSyntaxError):
                error = drop.__cause__
                raise InputError(
                    f"the chat template is not valid Jinja: line {error.lineno}: {error.message}; correct it"
                ) from None
