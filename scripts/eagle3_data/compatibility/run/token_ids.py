"""Which id each special and added token has, in every file of a checkpoint that says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from eagle3_data.findings import Finding
from eagle3_data.records import JsonObject
from eagle3_data.target.tokenizer import TEKKEN

Ids = Mapping[str, int]
USED = "the tokenizer in use"
NAMING_ID = re.compile(r"(?!pad_|decoder_start_).*_token_(?:id|ids|index)")
"""Keys of config.json that name a token by its id. Padding may have one that no token has."""
SHOWN = 5
REMEDY = (
    "download all tokenizer files again, from one revision of the checkpoint; the model was trained with"
    " one set of ids"
)


class TokenFiles:
    """What the JSON files of a checkpoint say of its tokens; each file is read once. What cannot be read says
    nothing: describe_target names it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._read: dict[str, JsonObject] = {}

    def record(self, name: str) -> JsonObject:
        if name not in self._read:
            try:
                value = json.loads((self.directory / name).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                value = None
            self._read[name] = value if isinstance(value, dict) else {}
        return self._read[name]

    @cached_property
    def added(self) -> dict[str, Ids]:
        """Per file, the ids of its added tokens."""
        decoder = self.record("tokenizer_config.json").get("added_tokens_decoder")
        entries = decoder.items() if isinstance(decoder, dict) else ()
        return {
            "tokenizer.json": self._listed("tokenizer.json", "added_tokens", "content", "id"),
            "tokenizer_config.json": {
                entry["content"]: int(number)
                for number, entry in entries
                if isinstance(entry, dict) and isinstance(entry.get("content"), str) and number.isdecimal()
            },
            "added_tokens.json": {
                token: number
                for token, number in self.record("added_tokens.json").items()
                if isinstance(number, int)
            },
            TEKKEN: self._listed(TEKKEN, "special_tokens", "token_str", "rank"),
        }

    def _listed(self, name: str, key: str, token: str, number: str) -> Ids:
        entries = self.record(name).get(key)
        return {
            entry[token]: entry[number]
            for entry in (entries if isinstance(entries, list) else ())
            if isinstance(entry, dict)
            and isinstance(entry.get(token), str)
            and isinstance(entry.get(number), int)
        }

    @property
    def model(self) -> JsonObject:
        """The model of tokenizer.json."""
        model = self.record("tokenizer.json").get("model")
        return model if isinstance(model, dict) else {}

    @property
    def vocabulary(self) -> Ids:
        """Its vocabulary, where that is a table of tokens."""
        vocabulary = self.model.get("vocab")
        return vocabulary if isinstance(vocabulary, dict) else {}


def check_token_ids(files: TokenFiles, used: Ids) -> list[Finding]:
    """Findings where two files give a token different ids or an id different tokens, and where config.json
    names an id that no token has. `used` is the vocabulary of the tokenizer in use."""
    tokens = {token for ids in files.added.values() for token in ids}
    base = {token: files.vocabulary[token] for token in tokens if token in files.vocabulary}
    places = {
        **files.added,
        "tokenizer.json": {**base, **files.added["tokenizer.json"]},
        USED: {token: used[token] for token in tokens if token in used},
    }
    findings = []
    if conflicts := [*_conflicts(places, tokens), *_shared(places)]:
        more = f" and {len(conflicts) - SHOWN} more" if len(conflicts) > SHOWN else ""
        title = f"the checkpoint's files disagree about token ids: {'; '.join(conflicts[:SHOWN])}{more}"
        findings.append(Finding("token-ids-disagree", "fail", title, str(files.directory), remedy=REMEDY))
    return findings + _without_token(files, set(used.values()))


def _conflicts(places: Mapping[str, Ids], tokens: Iterable[str]) -> list[str]:
    """Tokens of more than one id, as `'<eos>' is 2000 in a.json, 2010 in b.json`."""
    differences = []
    for token in sorted(tokens):
        numbers = {name: ids[token] for name, ids in places.items() if token in ids}
        if len(set(numbers.values())) > 1:
            differences.append(
                f"{token!r} is {', '.join(f'{number} in {name}' for name, number in numbers.items())}"
            )
    return differences


def _shared(places: Mapping[str, Ids]) -> list[str]:
    """Ids of more than one token, as `2000 is '<eos>' in a.json, '<bos>' in b.json`."""
    by_id: dict[int, dict[str, str]] = {}
    for name, ids in places.items():
        for token, number in ids.items():
            by_id.setdefault(number, {}).setdefault(token, name)
    return [
        f"{number} is {', '.join(f'{token!r} in {name}' for token, name in sorted(tokens.items()))}"
        for number, tokens in sorted(by_id.items())
        if len(tokens) > 1
    ]


def _without_token(files: TokenFiles, known: set[int]) -> list[Finding]:
    findings = []
    for name in ("config.json", "generation_config.json"):
        named = dict.fromkeys(_named_ids(files.record(name)))
        if unknown := [f"{key} = {number}" for key, number in named if number not in known]:
            title = (
                f"{name} names token ids that the tokenizer has no token for: {', '.join(unknown[:SHOWN])}"
            )
            place = str(files.directory / name)
            findings.append(Finding("token-id-without-token", "warn", title, place, remedy=REMEDY))
    return findings


def _named_ids(record: JsonObject) -> Iterator[tuple[str, int]]:
    """Each key that names a token's id, with the id."""
    for key, value in record.items():
        if isinstance(value, dict):
            yield from _named_ids(value)
        elif NAMING_ID.fullmatch(key):
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
                    yield key, number


def role_differences(files: TokenFiles) -> list[str]:
    """Where special_tokens_map.json gives a role such as `eos_token` to another token than
    tokenizer_config.json."""
    ours, theirs = files.record("special_tokens_map.json"), files.record("tokenizer_config.json")
    return [
        f"{role} is {mapped!r} in special_tokens_map.json and {configured!r} in tokenizer_config.json"
        for role in ours
        if role.endswith("_token")
        and (mapped := _content(ours[role])) is not None
        and (configured := _content(theirs.get(role))) is not None
        and mapped != configured
    ]


def _content(token: Any) -> str | None:
    """The text of a token, which may be written as an object with its options."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def table_differences(files: TokenFiles) -> list[str]:
    """How vocab.json and merges.txt differ from tokenizer.json, a sentence each."""
    ours, theirs = files.record("vocab.json"), files.vocabulary
    if not ours or not theirs:
        return []
    added = {token for ids in files.added.values() for token in ids}
    differing = [
        f"{token!r} is {ours.get(token, 'absent')} in vocab.json and {theirs.get(token, 'absent')} in"
        " tokenizer.json"
        for token in sorted({*ours, *theirs} - added)
        if ours.get(token) != theirs.get(token)
    ]
    differences = []
    if differing:
        differences.append(f"vocab.json and tokenizer.json differ in {len(differing)} tokens: {differing[0]}")
    merges = files.model.get("merges")
    path = files.directory / "merges.txt"
    if isinstance(merges, list) and path.is_file():
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        listed = [line for line in lines if line and not line.startswith("#version")]
        if listed != [" ".join(pair) if isinstance(pair, list) else pair for pair in merges]:
            differences.append(
                f"the {len(listed)} merges of merges.txt are not the {len(merges)} of tokenizer.json"
            )
    return differences
