"""The fields of a row: which of them known data sets give a meaning to, and which were used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from eagle3_data.config import Source
from eagle3_data.records import JsonObject
from eagle3_data.tokenization.reading.rows import BadRowError, Notice

TURNS = ("messages", "conversations", "conversation", "traj")
PROMPTS = ("prompt", "question", "instruction", "query")
ANSWERS = "answers"
"""xLAM's: tool calls, as JSON text."""

RESPONSES = ("response", "completion", "answer", "output", ANSWERS)
CHOSEN = "chosen"
INPUTS = ("input", "context")
"""What an instruction is about: Alpaca's and Dolly's."""

NO_INPUT = ("<noinput>", "<no input>", "no input")
"""What Alpaca's predecessors write for an empty input."""

SYSTEMS = ("system", "system_prompt", "system_message")
HISTORY = "history"
"""Earlier turns: messages, or pairs of prompt and response as LLaMA-Factory has them."""

REASONINGS = ("reasoning_content", "thinking")
TEXTS = ("text",)
IDS = ("input_ids", "token_ids")
WANTED_LABELS = ("label", "kto_tag")
"""False where a single answer is one that was rejected (KTO of TRL and LLaMA-Factory)."""

ANSWERS_OF_TABLES = frozenset((*RESPONSES, *TEXTS))
"""Beside turns these often repeat the result only."""

MEANINGFUL = frozenset(
    (
        *(*TURNS, *PROMPTS, *RESPONSES, CHOSEN, *INPUTS, *SYSTEMS, HISTORY, *REASONINGS, *TEXTS, "tools"),
        *("sys_prompt", "system_instruction", "system_instructions", "instructions", "developer", "persona"),
        *(
            "functions",
            "function_call",
            "available_tools",
            "tool_definitions",
            "tool_choice",
            "builtin_tools",
        ),
        *("documents", "passages", "chat_template_kwargs", "template_arguments", "model_identity"),
        *("reasoning_effort", "enable_thinking", "response_format", "weight", "train", "train_on_input"),
        *(
            "reasoning",
            "think",
            "thought",
            "thoughts",
            "cot",
            "chain_of_thought",
            "complex_cot",
            "scratchpad",
        ),
    )
)
"""Fields whose content belongs to the conversation, or changes how it is rendered or trained, in a known
family of data sets. What is only about a row, such as its id, source, topic or score, is not among them."""

MEANINGFUL_IN_TURNS = frozenset(
    (
        *(
            "refusal",
            "thought",
            "thoughts",
            "think",
            "cot",
            "reasoning_details",
            "thinking_blocks",
            "analysis",
        ),
        *("function_calls", "functions", "tools", "documents", "citations", "prefix", "system"),
    )
)
"""Fields of a turn that hold more of what is said in it, in a known family of data sets or interface."""

TEXTS_OF_TURNS = ("reasoning_content", "reasoning", "thinking")
"""Fields of a turn that are used where they are texts."""

INTERESTING_IN_TURNS = MEANINGFUL_IN_TURNS.union(TEXTS_OF_TURNS, ("weight",))


class Fields:
    """A row's fields, and which of them were used."""

    def __init__(self, row: JsonObject, source: Source) -> None:
        """Where the source names a field, its usual names are passed over on purpose."""
        self.row = row
        self.used: set[str] = set()
        self._passed_over = {
            *((*TURNS, *PROMPTS, *TEXTS) if source.field else ()),
            *((*RESPONSES, CHOSEN) if source.response_field else ()),
        }

    def first(self, names: Iterable[str]) -> str:
        """The first of the fields that is there and not null, which is used then; empty if none is."""
        name = next((name for name in names if self.row.get(name) is not None), "")
        if name:
            self.used.add(name)
        return name

    def required(self, names: tuple[str, ...], key: str) -> Any:
        """The value of the first of the fields. Raises BadRowError naming the source's `key` that may name
        another."""
        if name := self.first(names):
            return self.row[name]
        raise missing(self.row, names, key)

    def text(self, names: Iterable[str]) -> str:
        """The first of the fields that holds more than white space, which is used then; empty if there is
        none."""
        for name in names:
            value = self.row.get(name)
            if isinstance(value, str) and value.strip():
                self.used.add(name)
                return value
        return ""

    def ignored(self, texts: list[str], *, as_one: bool = False) -> tuple[Notice, ...]:
        """The meaningful fields that were not used and say something that is not in `texts`, the
        conversation's own; `as_one`: they are one formatted text, of which the others may be parts."""
        return tuple(
            Notice("ignored-field", name[:40])
            for name, value in self.row.items()
            if name not in self.used
            and name not in self._passed_over
            and name.lower() in MEANINGFUL
            and _says_something(value)
            and not _repeats(value, texts, within=as_one or name in ANSWERS_OF_TABLES)
        )


def ignored_in_turns(turns: Sequence[JsonObject]) -> tuple[Notice, ...]:
    """The meaningful fields of turns that are not used."""
    if INTERESTING_IN_TURNS.isdisjoint(set().union(*turns)):
        return ()
    found = Counter(
        name for turn in turns for name in turn.keys() & MEANINGFUL_IN_TURNS if _says_something(turn[name])
    )
    for turn in turns:
        for name in TEXTS_OF_TURNS:
            if not isinstance(turn.get(name), (str, type(None))) and _says_something(turn[name]):
                found[name] += 1
        weight = turn.get("weight")
        if isinstance(weight, float) and weight not in (0, 1):
            found["weight"] += 1
    return tuple(Notice("ignored-field", f"{name} of a turn", count) for name, count in sorted(found.items()))


def missing(row: JsonObject, names: tuple[str, ...], key: str) -> BadRowError:
    """The error for a row that has none of the fields."""
    if present := next((name for name in names if name in row), ""):
        return BadRowError(f"field {present!r} is null")
    wanted = " or ".join(map(repr, names))
    return BadRowError(
        f"there is no field {wanted}; the fields are {', '.join(repr(name)[:60] for name in row)}; set the"
        f" source's `{key}` or `layout`"
    )


def _says_something(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else value not in (None, False, [], {}, True)


def _repeats(value: Any, texts: list[str], *, within: bool) -> bool:
    """Whether a field only repeats the conversation: turns of it, one of its texts or, if `within`, a part of
    one, or a text that has the answer in it."""
    if isinstance(value, str):
        stripped = value.strip()
        if any(stripped == text.strip() for text in texts):
            return True
        return within and (any(stripped in text for text in texts) or texts[-1].strip() in value)
    own = list(texts_of(value))
    return bool(own) and {text.strip() for text in own} <= {text.strip() for text in texts}


def texts_of(value: Any) -> Iterator[str]:
    """What is said in a value of messages, in whatever form."""
    if isinstance(value, list):
        for item in value:
            yield from texts_of(item)
    elif isinstance(value, dict):
        said = next(
            (value[name] for name in ("content", "value", "text") if value.get(name) is not None), None
        )
        if isinstance(said, str):
            yield said
        else:
            yield from texts_of(said)
    elif isinstance(value, str):
        yield value
