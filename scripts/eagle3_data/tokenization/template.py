"""The target's chat template: rendering, and what a few renderings of a made-up conversation teach about it.

Nothing here knows any model's template. What differs between templates (does it want tool arguments as an object or as
text, what closes a turn, what stands between the generation prompt and the answer) is found by rendering and looking.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError

from eagle3_data.errors import headline
from eagle3_data.tokenization.rows import DropError

Message = dict[str, Any]

MARK = "\ue0f1mark\ue0f2"
"""Stands in for a text whose place in a rendering is looked for. Private-use characters: never part of a template's syntax."""


class ChatTemplate:
    """Renders conversations as `tokenizer.apply_chat_template(tokenize=False)` does, without its cost per call."""

    def __init__(self, source: str, variables: Mapping[str, Any], stop_texts: Sequence[str], added_tokens: Sequence[str]) -> None:
        """`variables` are the tokenizer's special tokens and the user's arguments; `stop_texts` the target's own stop tokens, `added_tokens` all added ones."""
        from transformers.utils.chat_template_utils import _compile_jinja_template

        self.source = source
        self._template = _compile_jinja_template(source)
        self._variables = dict(variables)
        self.null_content: str | None = None
        self.arguments_as_object = True
        self._learn_tool_calls()
        self.stops = tuple(dict.fromkeys((*stop_texts, *self._closing_tokens(added_tokens))))
        self.lead = self._learn_lead()

    @property
    def has_generation_tags(self) -> bool:
        return "endgeneration" in self.source

    def prepare(self, messages: Sequence[Message]) -> list[Message]:
        """Messages in the form this template understands. Raises DropError if arguments are no JSON object and must be one."""
        return [self._prepared(message) if "tool_calls" in message else message for message in messages]

    def render(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None, *, generation_prompt: bool = False) -> str:
        """The conversation as text. Raises DropError("template-refused") with the template's own message."""
        try:
            return str(self._template.render(messages=messages, tools=tools, documents=None, add_generation_prompt=generation_prompt, **self._variables))
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise DropError("template-refused", headline(error)) from error

    def render_tagged(self, messages: Sequence[Message], tools: list[dict[str, Any]] | None) -> list[tuple[int, int]]:
        """Character spans that the template itself marks with `{% generation %}`, in the text that `render` gives."""
        from transformers.utils.chat_template_utils import _render_with_assistant_indices

        try:
            spans: list[tuple[int, int]] = _render_with_assistant_indices(
                compiled_template=self._template, messages=messages, tools=tools, documents=None, add_generation_prompt=False, **self._variables
            )[1]
            return spans
        except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise DropError("template-refused", headline(error)) from error

    def find_stop(self, text: str, start: int, end: int) -> tuple[int, int] | None:
        """Span of the first stop token in text[start:end], the longest where two start together."""
        found = [(text.find(stop, start, end), -len(stop)) for stop in self.stops]
        hits = [hit for hit in found if hit[0] >= 0]
        if not hits:
            return None
        position, length = min(hits)
        return position, position - length

    def _prepared(self, message: Message) -> Message:
        calls = [{**call, "function": {**call["function"], "arguments": self._arguments(call["function"]["arguments"])}} for call in message["tool_calls"]]
        content = self.null_content if message["content"] is None else message["content"]
        return {**message, "content": content, "tool_calls": calls}

    def _arguments(self, arguments: Any) -> Any:
        if not self.arguments_as_object:
            return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        if isinstance(arguments, dict):
            return arguments
        try:
            parsed = json.loads(arguments) if arguments.strip() else {}
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict):
            raise DropError("template-refused", "a tool call's arguments are no JSON object, which the chat template needs")
        return parsed

    def _try(self, messages: Sequence[Message], **options: Any) -> str | None:
        try:
            return self.render(messages, **options)
        except DropError:
            return None

    def _learn_tool_calls(self) -> None:
        """Whether arguments are wanted as an object (as vLLM's server gives them) or as text, and whether content None prints as "None"."""
        user = {"role": "user", "content": "q"}

        def call(arguments: Any, content: str | None) -> str | None:
            function = {"name": "f", "arguments": arguments}
            return self._try([user, {"role": "assistant", "content": content, "tool_calls": [{"id": "f:0", "type": "function", "function": function}]}])

        with_object = call({"k": MARK}, "")
        self.arguments_as_object = with_object is None or MARK not in with_object or f"'{MARK}'" not in with_object
        if with_object is None and call(json.dumps({"k": "v"}), "") is not None:
            self.arguments_as_object = False
        null = call({"k": "v"} if self.arguments_as_object else '{"k": "v"}', None)
        self.null_content = "" if null is None or "None" in null else None

    def _closing_tokens(self, added_tokens: Sequence[str]) -> list[str]:
        """The added token, if any, that directly closes an assistant turn, at the end of a conversation and inside one."""
        user, answer = {"role": "user", "content": "q"}, {"role": "assistant", "content": MARK}
        found = []
        for messages in ([user, answer], [user, answer, user]):
            text = self._try(messages) or ""
            tail = text.partition(MARK)[2].lstrip()
            if tokens := [token for token in added_tokens if token and tail.startswith(token)]:
                found.append(max(tokens, key=len))
        return found

    def _learn_lead(self) -> str:
        """What the model writes before a plain answer, such as the name of a channel; mostly nothing."""
        user = {"role": "user", "content": "q"}
        prompt, whole = self._try([user], generation_prompt=True), self._try([user, {"role": "assistant", "content": MARK}])
        if prompt is None or whole is None or not whole.startswith(prompt):
            return ""
        return whole[len(prompt) :].partition(MARK)[0]
