"""Rows of turns, or of a prompt and a response, to conversations, with what the row says beside them."""

from __future__ import annotations

import json
import re
from typing import Any

from eagle3_data.config import Source
from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.fields import (
    ANSWERS,
    CHOSEN,
    HISTORY,
    INPUTS,
    NO_INPUT,
    PROMPTS,
    REASONINGS,
    RESPONSES,
    SYSTEMS,
    TURNS,
    Fields,
    ignored_in_turns,
    texts_of,
)
from eagle3_data.tokenization.reading.media import (
    field_with_media,
    media_in_turns,
    placeholder_in,
    without_media_parts,
)
from eagle3_data.tokenization.reading.messages import ROLES, openai_message, parsed, sharegpt_message
from eagle3_data.tokenization.reading.rows import BadRowError, Conversation, DropError, Notice
from eagle3_data.tokenization.reading.training_flags import training_flag

Turns = list[Any]

TURNS_AS_JSON = re.compile(r'\s*\[\s*\{\s*"(?:role|from)"\s*:')


def read_turns(row: JsonObject, source: Source) -> Conversation:
    """A conversation whose turns are in one field. Raises BadRowError, DropError."""
    fields = Fields(row, source)
    names = (source.field,) if source.field else TURNS
    if not source.field and row.get(CHOSEN) is not None and not any(row.get(name) for name in TURNS):
        names = (CHOSEN,)
    turns = parsed(fields.required(names, "field"), source.field or "turns")
    if not isinstance(turns, list):
        raise BadRowError(f"the turns are of type {type(turns).__name__}; expected a list")
    if turns and row.get(CHOSEN) is not None and names != (CHOSEN,) and _role(turns[-1], source) == "user":
        turns = [*turns, *_as_turns(row[fields.first((CHOSEN,))], "assistant")]
    return _conversation(turns, fields, source)


def read_prompt_response(row: JsonObject, source: Source) -> Conversation:
    """A conversation of a prompt and a response, each a text or messages. Raises BadRowError, DropError."""
    fields = Fields(row, source)
    prompt = fields.required((source.field,) if source.field else (*PROMPTS, *INPUTS), "field")
    asked = set(fields.used)
    names = (source.response_field,) if source.response_field else (*RESPONSES, CHOSEN)
    response = fields.required(names, "response_field")
    if isinstance(response, list) and response and _role(response[0], source) in ("system", "user"):
        fields.used -= asked  # the response has the prompt in it, as in UltraFeedback
        return _conversation(response, fields, source)
    turns = _as_turns(prompt, "user")
    if isinstance(prompt, str):
        turns = [
            *_history(fields),
            {"role": "user", "content": "\n".join((prompt, *_inputs(fields, source)))},
        ]
    answer = _as_turns(_calls(response) if ANSWERS in fields.used else response, "assistant")
    if isinstance(response, str) and (reasoning := fields.text(REASONINGS)):
        answer = [{**answer[0], "reasoning_content": reasoning}]
    return _conversation([*turns, *answer], fields, source)


def _as_turns(value: Any, role: str) -> Turns:
    """A prompt or response given as text, as one message, or as a list of messages or of tool calls."""
    if isinstance(value, str) and TURNS_AS_JSON.match(value):
        value = parsed(value, role)  # in a table of texts
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, dict):
        return [value]
    if not isinstance(value, list):
        raise BadRowError(
            f"the {role}'s part is of type {type(value).__name__}; expected text or a list of messages"
        )
    if value and all(isinstance(call, dict) and "name" in call and "arguments" in call for call in value):
        return [{"role": role, "content": None, "tool_calls": value}]
    return value


def _calls(answers: Any) -> Any:
    """The tool calls that xLAM's `answers` hold as JSON text, or the text as it is."""
    try:
        return json.loads(answers) if isinstance(answers, str) and answers.lstrip()[:1] == "[" else answers
    except ValueError:
        return answers


def _inputs(fields: Fields, source: Source) -> list[str]:
    """What an instruction is about, if the row says so in a field of its own."""
    names = (source.input_field,) if source.input_field else (n for n in INPUTS if n not in fields.used)
    text = fields.text(names)
    return [text] if text and text.strip().lower() not in NO_INPUT else []


def _history(fields: Fields) -> Turns:
    """Earlier turns of a prompt: messages, or pairs of prompt and response."""
    history = fields.row.get(HISTORY)
    if not isinstance(history, list) or not history:
        return []
    fields.used.add(HISTORY)
    turns: Turns = []
    for item in history:
        if isinstance(item, dict):
            turns.append(item)
        elif isinstance(item, (list, tuple)) and len(item) == 2:
            turns += [*_as_turns(item[0], "user"), *_as_turns(item[1], "assistant")]
        else:
            raise BadRowError(f"field {HISTORY!r} is not a list of messages or of prompt/response pairs")
    return turns


def _role(turn: Any, source: Source) -> str:
    """The role of a turn in any of its forms, empty if it has none that is known."""
    name = (turn.get("role") or turn.get("from")) if isinstance(turn, dict) else None
    return (source.roles.get(name) or ROLES.get(name.lower(), "")) if isinstance(name, str) else ""


def _conversation(turns: Turns, fields: Fields, source: Source) -> Conversation:
    """The turns as messages, with the row's system prompt and tools, and what is said of the row."""
    if not turns:
        raise DropError("empty", "no turns")
    media = media_in_turns(turns) or field_with_media(fields.row)
    if media and source.multimodal == "keep":
        turns = [without_media_parts(turn) for turn in turns]
    elif media:
        raise DropError("multimodal", media)
    messages, flags = [], []
    for number, turn in enumerate(turns):
        message, flag = _message(turn, number, source)
        messages.append(message)
        flags.append(flag)
    texts = [text for message in messages for text in texts_of(message)]
    notices = [*_marked_as_trained(messages, flags), *_left_out(messages, bool(media), source)]
    if system := _system(messages, fields, source):
        messages.insert(0, {"role": "system", "content": system})
        flags.insert(0, None)
    untrained = frozenset(
        i for i, flag in enumerate(flags) if flag is False and messages[i]["role"] == "assistant"
    )
    tools = _tools(fields, source)
    notices += [Notice("untrained-turn", count=len(untrained))] if untrained else []
    notices += [Notice("chosen-answer")] if CHOSEN in fields.used else []
    notices += [*fields.ignored(texts), *ignored_in_turns(turns), *_misnamed(fields.row, source)]
    return Conversation(messages, tools, untrained, tuple(notices))


def _message(turn: Any, number: int, source: Source) -> tuple[JsonObject, bool | None]:
    """A turn as a message, and whether the turn is to be trained, if it says so."""
    try:
        if not isinstance(turn, dict):
            raise BadRowError(f"is of type {type(turn).__name__}; expected an object")
        sharegpt = turn.get("role") is None and (
            source.layout == "sharegpt" or (source.layout != "messages" and turn.get("from") is not None)
        )
        message = (sharegpt_message if sharegpt else openai_message)(turn, source.roles)
        return message, training_flag(turn)
    except BadRowError as error:
        raise BadRowError(f"turn {number} {error}") from None


def _marked_as_trained(messages: Turns, flags: list[bool | None]) -> list[Notice]:
    others = sum(
        flag is True and message["role"] != "assistant" for message, flag in zip(messages, flags, strict=True)
    )
    return [Notice("training-flag", count=others)] if others else []


def _left_out(messages: Turns, has_media: bool, source: Source) -> list[Notice]:
    """Raises DropError where a question has a place for an image, though none came with the row."""
    for number, message in enumerate(messages):
        if message["role"] != "user":
            continue
        for text in texts_of(message):
            if found := placeholder_in(text):
                if source.multimodal == "drop":
                    raise DropError("multimodal", f"{found} in turn {number}")
                has_media = True
    return [Notice("text-of-multimodal")] if has_media else []


def _system(messages: Turns, fields: Fields, source: Source) -> str:
    """The row's system prompt, unless the conversation begins with one of its own."""
    names = (source.system_field,) if source.system_field else SYSTEMS
    used = set(fields.used)
    system = fields.text(names)
    if not system or messages[0]["role"] != "system":
        return system
    if list(texts_of(messages[0])) != [system]:
        fields.used = used  # it is not, and that is worth a notice
    return ""


def _tools(fields: Fields, source: Source) -> list[JsonObject] | None:
    tools = fields.row.get(source.tools_field)
    if not tools or (isinstance(tools, str) and not tools.strip()):
        return None
    fields.used.add(source.tools_field)
    tools = parsed(tools, source.tools_field)
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise BadRowError(f"field {source.tools_field!r} is not a list of tool descriptions")
    return tools or None


def _misnamed(row: JsonObject, source: Source) -> list[Notice]:
    """Fields that the configuration names, where the row does not have them. One row may lack a field that
    others have; whether all do is for the summary to see."""
    named = {"system_field": source.system_field, "input_field": source.input_field}
    if source.tools_field != "tools":
        named["tools_field"] = source.tools_field
    return [
        Notice("missing-field", f"{key} {name}") for key, name in named.items() if name and name not in row
    ]
