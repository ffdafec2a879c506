"""Loss masks on real chat templates: how many turns are right, beside speculators' masks, and how fast.

    PYTHONPATH=scripts:tests python tests/benchmarks/masks.py TEMPLATES CONVERSATIONS [--rows 20] [--speed]

TEMPLATES is a directory of *.jinja files, CONVERSATIONS a JSON array of {"messages": [...], "tools": [...]}
or of conversations as tau-bench has them ("traj"). A byte-level tokenizer with the template's own tokens is
made for each template. What is right is judged by tests/mask_oracle.py, which shares no code with the
product.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import mask_oracle as oracle
from eagle3_data.config import Data, Target, Tokenization
from eagle3_data.tokenization.reading.rows import Row
from eagle3_data.tokenization.samples import RowTokenizer
from eagle3_data.tokenization.tokenizer import load_tokenizer
from tiny_tokenizer import describe, ids_of

TOKEN = re.compile(r"<[|\uff5c][^<>|\uff5c\s\"'{}]{1,60}[|\uff5c]>|</?[a-z_]+(?::[a-z_]+)?>|\[/?[A-Z_]{3,}\]")
TODAY = date.fromisoformat(Tokenization().date)
PLAIN = re.compile(r"</?(?:b|p|i|li|ul|div|function|parameter|parameters|name|tools|results)>")


class Subject:
    """A template with a tokenizer made for it."""

    def __init__(self, source: str, texts: Sequence[str], directory: Path) -> None:
        from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
        from transformers import PreTrainedTokenizerFast

        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        core.train_from_iterator(
            texts, trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
        )
        found = {token for token in TOKEN.findall(source) if not PLAIN.fullmatch(token)}
        self.tokenizer: Any = PreTrainedTokenizerFast(
            tokenizer_object=core, bos_token="<s>", eos_token="</s>", chat_template=source
        )
        found |= set(TOKEN.findall(self._tail())) | {"<s>", "</s>"}
        core.add_special_tokens([AddedToken(token, normalized=False) for token in sorted(found)])
        closing = [token for token in TOKEN.findall(self._tail()) if token in found]
        eos = closing[-1] if closing else "</s>"
        self.tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=core, bos_token="<s>", eos_token=eos, chat_template=source
        )
        self.tokenizer.save_pretrained(directory)
        settings = Tokenization(max_length=1 << 20, on_bad_row="drop")
        target = load_tokenizer(
            describe(directory, len(self.tokenizer)), Target(path=str(directory)), settings
        )
        assert target.template is not None
        self.style = target.template.style
        self.backend = target.backend
        self.rows = RowTokenizer(target, Data(sources=({"path": "talks.jsonl"},)), settings)
        self.stops = [eos]

    def _tail(self) -> str:
        """What closes an answer, wherever it stands; else what does at the end."""
        mark = "\ue0f1"
        talk = [{"role": "user", "content": "q"}, {"role": "assistant", "content": mark}]
        tails = [
            (self.text([*talk, *behind], None, False) or "").rpartition(mark)[2] for behind in ([], talk[:1])
        ]
        shared = os.path.commonprefix(tails)  # noqa: RUF071 (of texts)
        return shared if TOKEN.search(shared) else tails[0]

    def text(self, messages: Sequence[Any], tools: Any, prompt: bool) -> str | None:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    list(messages),
                    tools=tools,
                    tokenize=False,
                    add_generation_prompt=prompt,
                    strftime_now=TODAY.strftime,
                )
            )
        except Exception:  # noqa: BLE001 (a template raises what it likes)
            return None

    def ours(
        self, talk: dict[str, Any]
    ) -> tuple[list[tuple[list[Any], list[int], list[int], list[int]]], str]:
        """Samples as messages, wanted turns, ids and mask, or why there are none."""
        outcome = self.rows(Row(0, 0, "line 1", text=json.dumps(talk)))
        messages = self.style.prepare([{"content": None, **message} for message in talk["messages"]])
        wanted = [
            index
            for index, message in enumerate(messages)
            if message["role"] == "assistant" and _says(message)
        ]
        messages = messages[: wanted[-1] + 1] if wanted else messages
        found = [(messages, wanted, ids_of(sample), list(sample.mask)) for sample in outcome.samples]
        return found, outcome.dropped[0].reason if outcome.dropped else ""

    def theirs(self, talk: dict[str, Any]) -> list[tuple[list[Any], list[int], list[int], list[int]]]:
        """The rows that speculators makes, where vLLM's render endpoint is this tokenizer."""
        from speculators.data_generation import preprocessing

        def render(
            prefix: list[Any], *_: Any, add_generation_prompt: bool, tools: Any = None, **__: Any
        ) -> Any:
            ready = self.style.prepare([{"content": None, **message} for message in prefix])
            return list(
                self.tokenizer.apply_chat_template(
                    ready,
                    tools=tools,
                    add_generation_prompt=add_generation_prompt,
                    return_dict=False,
                    strftime_now=TODAY.strftime,
                )
            )

        preprocessing._encode_render = render
        rows = preprocessing._render_conversation_rows(talk["messages"], talk.get("tools"), 0, "", 1 << 20)
        found = []
        for row in rows or ():
            messages = self.style.prepare([{"content": None, **message} for message in row["conv"]])
            if _says(messages[-1]):
                found.append((messages, [len(messages) - 1], list(row["input_ids"]), list(row["loss_mask"])))
        return found

    def judged(
        self, made: Sequence[tuple[list[Any], list[int], list[int], list[int]]], tools: Any
    ) -> Counter[str]:
        verdicts: Counter[str] = Counter()
        for messages, wanted, ids, mask in made:
            text = self.text(messages, tools, False)
            runs = oracle.runs_of(ids, mask, lambda run: str(self.backend.decode(run)))
            trained = oracle.trained_letters(runs, text or "")
            found = trained and oracle.judge(
                messages,
                wanted,
                trained,
                text or "",
                lambda part, prompt: self.text(part, tools, prompt),
                self.stops,
            )
            verdicts.update(found.values() if found else ["cannot tell"] * len(wanted))
        return verdicts


def _says(message: Any) -> bool:
    return bool(message.get("tool_calls")) or bool((message["content"] or "").strip())


def conversations(path: Path, rows: int) -> list[dict[str, Any]]:
    talks = []
    for row in json.loads(path.read_text(encoding="utf-8"))[:rows]:
        messages = row.get("messages") or row["traj"]
        names = sorted(
            {call["function"]["name"] for turn in messages for call in turn.get("tool_calls") or ()}
        )
        tools = row.get("tools") or [
            {"type": "function", "function": {"name": name, "description": name, "parameters": {}}}
            for name in names
        ]
        talks.append({"messages": [_in_order(turn) for turn in messages], "tools": tools or None})
    return talks


def _in_order(turn: dict[str, Any]) -> dict[str, Any]:
    """A turn whose calls have the name before the arguments, as they are read."""
    calls = turn.get("tool_calls")
    if not calls:
        return turn
    functions = [{name: call["function"][name] for name in ("name", "arguments")} for call in calls]
    return turn | {
        "tool_calls": [call | {"function": made} for call, made in zip(calls, functions, strict=True)]
    }


def seconds(function: Callable[..., object], calls: Sequence[tuple[Any, ...]]) -> float:
    """Processor time of a call."""
    start = time.process_time()
    for arguments in calls:
        function(*arguments)
    return (time.process_time() - start) / len(calls)


def numbered(talks: Sequence[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The conversations with other texts each time, but for the system prompts: only those are remembered."""
    return [
        talk
        | {
            "messages": [
                turn | {"content": f"{turn['content']} ({number})"}
                if turn["role"] != "system" and isinstance(turn.get("content"), str)
                else turn
                for turn in talk["messages"]
            ]
        }
        for talk in talks
    ]


def speed(subject: Subject, talks: Sequence[dict[str, Any]], times: int = 5) -> str:
    """Processor time a row beside that of the bare loop over the same rows, in turn, the best of some."""

    def render(messages: Any, tools: Any) -> None:
        subject.tokenizer.apply_chat_template(messages, tools=tools)

    turns = []
    for number in range(times):
        ready, rows = _prepared(subject, numbered(talks, number))
        if not ready:
            return "refused"
        bare = seconds(render, ready)
        turns.append((bare, seconds(subject.rows, [(row,) for row in rows])))
    bare, own = map(min, zip(*turns, strict=True))
    return f"{own * 1e3:.1f} ms/row, {own / bare:.2f}x the bare loop"


def _prepared(subject: Subject, talks: Sequence[dict[str, Any]]) -> tuple[list[Any], list[Row]]:
    ready = [
        (subject.style.prepare([{"content": None, **message} for message in talk["messages"]]), talk["tools"])
        for talk in talks
    ]
    ready = [(messages, tools) for messages, tools in ready if subject.text(messages, tools, False)]
    rows = [Row(0, 0, "line 1", text=json.dumps(talk)) for talk in talks]
    return ready, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("templates", type=Path)
    parser.add_argument("conversations", type=Path)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--speed", action="store_true", help="measure processor time, too")
    parser.add_argument("--only", default="", help="templates whose name holds this")
    options = parser.parse_args()
    talks = conversations(options.conversations, options.rows)
    texts = [turn.get("content") or "" for talk in talks for turn in talk["messages"]]
    ours_in_all: Counter[str] = Counter()
    theirs_in_all: Counter[str] = Counter()
    for path in sorted(path for path in options.templates.glob("*.jinja") if options.only in path.stem):
        with tempfile.TemporaryDirectory() as directory:
            subject = Subject(path.read_text(encoding="utf-8"), texts, Path(directory))
            ours: Counter[str] = Counter()
            theirs: Counter[str] = Counter()
            for talk in talks:
                made, reason = subject.ours(talk)
                ours += (
                    subject.judged(made, talk["tools"]) if made else Counter({f"row dropped: {reason}": 1})
                )
                theirs += subject.judged(subject.theirs(talk), talk["tools"])
            print(path.stem, "ours:", dict(ours), "speculators:", dict(theirs), flush=True)
            if options.speed:
                print("   ", speed(subject, talks), flush=True)
            ours_in_all += ours
            theirs_in_all += theirs
    print("in all, ours:", dict(ours_in_all), "speculators:", dict(theirs_in_all))


if __name__ == "__main__":
    main()
