"""Whether the tokenizer in use does what the checkpoint's other tokenizers do, and ends where they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle3_data.compatibility.run.own_tokenizers import (
    PROBES,
    OwnTokenizer,
    encode_plain,
    own_tokenizers,
    vocabulary_text,
)
from eagle3_data.compatibility.run.token_ids import (
    REMEDY,
    TokenFiles,
    role_differences,
    table_differences,
)
from eagle3_data.findings import Finding

SHOWN_IDS = 4
SHOWN_CHARACTERS = 100
OWN_CODE = "transformers_modules"
"""The package that transformers imports a checkpoint's own code into."""


def check_agreement(files: TokenFiles, used: Any) -> list[Finding]:
    """Findings where the tokenizer `used` gives a text other ids than another tokenizer of the checkpoint,
    where the files that a tokenizer is built from differ, and where this could not be seen."""
    place = str(files.directory)
    findings = [
        Finding("tokenizers-disagree", "warn", difference, place, remedy=REMEDY)
        for difference in [*role_differences(files), *table_differences(files)]
    ]
    code_is_used = type(used).__module__.startswith(OWN_CODE)
    for own in own_tokenizers(files.directory, code_is_used):
        if isinstance(own, str):
            remedy = "compare its ids with those of the checkpoint's own tokenizer, on text from your data"
            findings.append(Finding("tokenizer-not-compared", "unknown", own, place, remedy=remedy))
        elif differing := [*_differing(own, used)]:
            kinds = ", ".join(kind for kind, _ in differing)
            title = (
                f"{own.source} and the tokenizer in use ({type(used).__name__}) give different ids for text"
                f" of these kinds: {kinds}. {differing[0][1]}"
            )
            findings.append(Finding("tokenizers-disagree", own.level, title, place, remedy=_remedy(own)))
    return findings


def _remedy(own: OwnTokenizer) -> str:
    if own.needs_code:
        return (
            "use the checkpoint's own tokenizer: read its Python code, then set target.trust_remote_code:"
            " true, or put a tokenizer.json into the checkpoint that gives the ids of its code"
        )
    return REMEDY


def _differing(own: OwnTokenizer, used: Any) -> Iterator[tuple[str, str]]:
    """Each kind of text on which they differ, with the first difference in words."""
    texts = PROBES if own.level == "warn" else {**PROBES, "of its own vocabulary": vocabulary_text(used)}
    for kind, text in texts.items():
        theirs, ours = own.encode(text), encode_plain(used, text)
        if theirs != ours:
            pairs = zip(theirs, ours, strict=False)
            first = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(theirs), len(ours)))
            window = slice(first, first + SHOWN_IDS)
            counts = f"{len(theirs)} and {len(ours)} ids, from position {first} on"
            quoted = repr(text[:SHOWN_CHARACTERS])
            yield kind, f"For {quoted} they give {counts} {theirs[window]} and {ours[window]}"


def end_ids(files: TokenFiles, *names: str) -> list[int]:
    """The ids that end generation, as the first of the named files that names any has them."""
    for name in names:
        value = files.record(name).get("eos_token_id")
        listed = value if isinstance(value, list) else [value]
        if ids := [number for number in listed if isinstance(number, int) and number >= 0]:
            return ids
    return []


def check_end(files: TokenFiles, used: Any) -> list[Finding]:
    """A finding where what ends generation is not the tokenizer's own end token."""
    ends, own = end_ids(files, "generation_config.json", "config.json"), used.eos_token_id
    if not ends or not isinstance(own, int) or own in ends:
        return []
    title = (
        f"the tokenizer's end token is {used.eos_token!r} ({own}), and the configuration ends generation at"
        f" {_named(ends, used)}"
    )
    remedy = (
        "check in samples.html that each answer ends with the model's end token; correct eos_token_id in"
        " generation_config.json or eos_token in tokenizer_config.json"
    )
    return [Finding("eos-disagrees", "warn", title, str(files.directory), remedy=remedy)]


def check_turn_end(files: TokenFiles, used: Any, after_answer: str) -> list[Finding]:
    """A finding where the token that the chat template puts after an answer ends nothing. `after_answer` is
    what it renders behind the last answer."""
    ids = encode_plain(used, after_answer.strip()) if after_answer.strip() else []
    ends = {used.eos_token_id, *end_ids(files, "generation_config.json"), *end_ids(files, "config.json")}
    if not ids or ids[0] in ends or ids[0] not in used.added_tokens_decoder:
        return []
    title = (
        f"the chat template ends an answer with {_named(ids[:1], used)}, and generation ends only at"
        f" {_named(sorted(ends - {None}), used)}"
    )
    remedy = (
        "use the chat template that belongs to this checkpoint (a base model's end token is not that of its"
        " chat version), or correct eos_token_id in generation_config.json"
    )
    return [Finding("turn-end-not-eos", "warn", title, str(files.directory), remedy=remedy)]


def _named(ids: list[int], used: Any) -> str:
    return ", ".join(f"{used.convert_ids_to_tokens(number)!r} ({number})" for number in ids)
