"""Whether the target's tokenizer does what tokenization and training need (A6). Imports transformers, so it
runs after the static part."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3_data.compatibility.run.agreement import check_agreement, check_end, check_turn_end
from eagle3_data.compatibility.run.remote_code import REMEDY
from eagle3_data.compatibility.run.token_ids import TokenFiles, check_token_ids
from eagle3_data.config import Tokenization
from eagle3_data.errors import headline, message_of
from eagle3_data.findings import Finding
from eagle3_data.system.bounds import call_bounded
from eagle3_data.target.tokenizer import load_checkpoint_tokenizer

CONVERSATION = [
    {"role": "user", "content": "Wie spät ist es? 你好 🙂"},
    {"role": "assistant", "content": "It is noon.\n\n```python\nprint(12)\n```"},
]


def check_tokenizer(
    target: str, vocab_size: int, trust_remote_code: bool, tokenization: Tokenization
) -> list[Finding]:
    """Findings about the tokenizer in checkpoint directory `target`, used as `tokenization` says."""
    try:
        import transformers  # noqa: F401
    except Exception as error:  # noqa: BLE001 - an import may fail in any way, and vLLM imports transformers, too
        title = f"transformers cannot be imported: {headline(error)}"
        remedy = (
            "install one of envs/'s environments; beside a CPU torch leave torchvision, torchaudio and"
            " torchcodec out"
        )
        return [Finding("transformers-unusable", "fail", title, remedy=remedy)]
    try:
        tokenizer = load_checkpoint_tokenizer(target, trust_remote_code)
    except Exception as error:  # noqa: BLE001 - whatever a tokenizer's loader raises is the finding
        return [_unusable(target, error)]
    files = TokenFiles(Path(target))
    checks: dict[str, Callable[[], list[Finding]]] = {
        "ids are below the vocabulary's size": lambda: _ids_below(tokenizer, vocab_size, target),
        "special tokens are tokens of their own": lambda: _round_trips(tokenizer, target),
        "files agree about token ids": lambda: check_token_ids(files, tokenizer.get_vocab()),
        "tokenizers agree": lambda: check_agreement(files, tokenizer),
        "the end token ends generation": lambda: check_end(files, tokenizer),
        "the chat template renders": lambda: _template(tokenizer, vocab_size, files, tokenization),
    }
    return [finding for what, check in checks.items() for finding in _judged(what, check, target)]


def _judged(what: str, check: Callable[[], list[Finding]], target: str) -> list[Finding]:
    """What a check finds, or that it could not judge: a checkpoint's own tokenizer may do anything."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - whatever the tokenizer raises is the reason
        title = f"whether {what} could not be judged: {headline(error)}"
        remedy = "look at the rendered samples (samples.html) before training on them"
        return [Finding("tokenizer-not-compared", "unknown", title, target, remedy=remedy)]


def _unusable(target: str, error: Exception) -> Finding:
    if "trust_remote_code" in message_of(error):
        title = f"the tokenizer in {target} is Python code of its own; target.trust_remote_code is false"
        return Finding("remote-code-needed", "fail", title, "target.trust_remote_code", remedy=REMEDY)
    title = f"the tokenizer does not load: {headline(error)}"
    remedy = "check that the checkpoint's tokenizer files are complete and fit the installed transformers"
    return Finding("tokenizer-unusable", "fail", title, target, remedy=remedy)


def _ids_below(tokenizer: Any, vocab_size: int, target: str) -> list[Finding]:
    beyond = {token: number for token, number in tokenizer.get_vocab().items() if number >= vocab_size}
    if not beyond:
        return []
    names = ", ".join(
        f"{token!r}={number}" for token, number in sorted(beyond.items(), key=lambda item: item[1])[:5]
    )
    title = (
        f"{len(beyond)} tokens have ids beyond the model's vocabulary of {vocab_size}: {names}; a sample"
        " with one of them would crash in the embedding"
    )
    used = any(token in tokenizer.all_special_tokens for token in beyond)
    remedy = "use the tokenizer that belongs to this model"
    return [Finding("token-beyond-vocabulary", "fail" if used else "warn", title, target, remedy=remedy)]


def _round_trips(tokenizer: Any, target: str) -> list[Finding]:
    """A special token that does not encode to its own one id is split into text, and turns are then masked
    wrongly."""
    split = []
    for token in dict.fromkeys(tokenizer.all_special_tokens):
        ids = tokenizer.encode(token, add_special_tokens=False)
        if ids != [tokenizer.convert_tokens_to_ids(token)]:
            split.append(token)
    if not split:
        return []
    title = f"special tokens do not round-trip through the tokenizer: {', '.join(map(repr, split[:8]))}"
    return [
        Finding(
            "special-token-split",
            "fail",
            title,
            target,
            remedy="repair added_tokens in the checkpoint's tokenizer files",
        )
    ]


def _template(
    tokenizer: Any, vocab_size: int, files: TokenFiles, tokenization: Tokenization
) -> list[Finding]:
    """The template the run uses, which is that of `tokenization` where it names one.

    A template is only warned of: the run's data is tokenized by now, so it rendered that, or the data (texts,
    token ids) needs none.
    """
    override = {}
    place = target = str(files.directory)
    if tokenization.chat_template:
        place = "tokenization.chat_template"
        try:
            override = {"chat_template": Path(tokenization.chat_template).read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            title = f"the chat template {tokenization.chat_template} cannot be read: {headline(error)}"
            return [Finding("template-fails", "warn", title, place, remedy="correct the path")]
    elif not getattr(tokenizer, "chat_template", None):
        title = (
            "the checkpoint has no chat template, so conversations cannot be rendered as the model was"
            " trained"
        )
        remedy = (
            "harmless for texts and token ids; otherwise put the model's chat_template.jinja into the"
            " checkpoint, or set tokenization.chat_template"
        )
        return [Finding("no-chat-template", "warn", title, place, remedy=remedy)]
    try:
        arguments = {**override, **tokenization.template_arguments}
        text = call_bounded(lambda: tokenizer.apply_chat_template(CONVERSATION, tokenize=False, **arguments))
        ids = tokenizer.encode(text, add_special_tokens=False)
    except Exception as error:  # noqa: BLE001 - whatever a template raises is the finding
        title = f"the chat template does not render a plain conversation: {headline(error)}"
        return [
            Finding(
                "template-fails",
                "warn",
                title,
                place,
                remedy="look at the rendered samples (samples.html); repair the template if any are missing",
            )
        ]
    if lost := [turn["role"] for turn in CONVERSATION if turn["content"] not in text]:
        title = f"the chat template leaves out what the {lost[0]} said"
        return [
            Finding(
                "template-drops-text",
                "warn",
                title,
                place,
                remedy="look at the rendered samples before training on them",
            )
        ]
    if beyond := [number for number in ids if number >= vocab_size]:
        title = (
            f"a rendered conversation holds token id {beyond[0]}, beyond the model's vocabulary of"
            f" {vocab_size}"
        )
        return [
            Finding(
                "token-beyond-vocabulary",
                "fail",
                title,
                target,
                remedy="use the tokenizer that belongs to this model",
            )
        ]
    return check_turn_end(files, tokenizer, text.rpartition(CONVERSATION[-1]["content"])[2])
