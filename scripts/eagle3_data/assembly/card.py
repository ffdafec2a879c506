"""The card of a training set, its README.md: for people, and from its provenance alone."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3_data.assembly.layout import CARD, PROVENANCE
from eagle3_data.assembly.provenance import Provenance, SourceUse
from eagle3_data.assembly.trainers import MODELOPT, SPECFORGE, SPECULATORS
from eagle3_data.dtypes import SAME, stored_dtype
from eagle3_data.text import counted
from eagle3_data.validation.coverage import describe_proofs

WORDS = {
    SPECULATORS: "speculators (vLLM project), 0.9",
    SPECFORGE: "SpecForge",
    MODELOPT: "NVIDIA ModelOpt, called in its examples/speculative_decoding",
}
NOTES = {
    SPECULATORS: (
        "Under torch 2.11 the fused loss fails with an error of inductor: add `--loss-implementation eager`"
        " (`train.yaml` has it where this set was assembled with such a torch). On a GPU without flex"
        " attention: `--draft-attn-impl sdpa`."
    ),
    SPECFORGE: (
        "`hidden_state` is after the target's final norm. Layers count from 0, the state behind the layer:"
        " one less than vLLM's. `draft.json` describes the draft."
    ),
    MODELOPT: (
        "States are before the final norm (`hidden_states_prenorm: True`). Layers count as SpecForge's. It"
        " has no offline validation and skips rows of 10 tokens or fewer."
    ),
}


def card(facts: Provenance) -> str:
    """Markdown. Holds no dates: equal runs give equal cards."""
    parts = [
        f"# EAGLE-3 training set for {facts.target.architecture}\n\n" + _contents(facts),
        "## Train\n\n" + "\n\n".join(_training(facts)),
        "## Serve the draft\n\n" + _serving(facts),
        "## Proven, and not\n\n" + _proofs(facts),
        "## Sources\n\n" + "\n".join(_sources(facts.sources)),
        "## Made with\n\n" + _versions(facts),
    ]
    return "\n\n".join(parts) + "\n"


def _contents(facts: Provenance) -> str:
    layers = ", ".join(map(str, facts.extraction["layers"]))
    rows = [
        ("target", f"`{facts.target.path}` (fingerprint `{facts.target.fingerprint}`)"),
        ("rows", f"{facts.rows:,}, of at most {facts.longest:,} tokens"),
        ("tokens", f"{facts.tokens:,}, of which {facts.trained_tokens:,} are trained"),
        ("answers", _answers(facts)),
        ("split", _split(facts)),
        ("states", f"{_numbers(facts)}, layers {layers} of {facts.target.num_hidden_layers}"),
        ("draft vocabulary", _vocabulary(facts)),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    return f"""| | |
|---|---|
{table}

Layer ids count as vLLM's: k is the residual stream after k decoder layers. The last slot is the state after
the last layer, before the final norm; a trainer computes its targets from it, the others are the draft's
inputs. Everything is unshifted: state t and mask t belong to token t; mask 1 says that token t is trained.

`{PROVENANCE}` holds all of this and more for programs, `verify` of the workflow reads every byte, and
`eagle3_data.TrainingSet(directory)[row]` gives token ids, mask, auxiliary states and last state."""


def _numbers(facts: Provenance) -> str:
    dtype = str(facts.extraction["dtype"])
    if stored_dtype(dtype, facts.extraction.get("storage_dtype", SAME)) == dtype:
        return dtype
    return f"{dtype}, stored as float8_e4m3fn with a scale for each token and slot (2.6 % off)"


def _answers(facts: Provenance) -> str:
    how = facts.generation
    if not how:
        return "the data sets'"
    drawn = "greedy"
    if how["temperature"]:
        names = ("temperature", "top_p", "top_k", "seed")
        drawn = ", ".join(f"{name} {how[name]:g}" for name in names)
    return f"the target's own, {drawn}, of at most {how['max_tokens']:,} tokens (generation id `{how['id']}`)"


def _split(facts: Provenance) -> str:
    split = facts.split
    if split is None:
        return "unknown"
    if split.set_aside:
        return (
            f"{split.train:,} training rows, then {split.validation:,} for validation, whole conversations;"
            f" `train-data-ratio {split.train_data_ratio:.6g}` cuts there"
        )
    return (
        "no validation rows were set aside (`data.train_ratio: 1.0`); speculators needs some, and"
        f" `train-data-ratio {split.train_data_ratio:.6g}` holds back the last conversation"
    )


def _vocabulary(facts: Provenance) -> str:
    draft = facts.draft_vocabulary
    if draft is None:
        return "unknown"
    how = "recommended" if draft.recommended else "as configured"
    if draft.full:
        return f"the target's own, {draft.size:,} tokens ({how})"
    return (
        f"{draft.size:,} of the target's {facts.target.vocab_size:,} tokens ({how}), which cover"
        f" {draft.coverage:.2%} of the trained ones"
    )


def _training(facts: Provenance) -> Iterable[str]:
    for name, use in facts.formats.items():
        folder = "this folder" if use.folder == "." else f"`{use.folder}/`"
        ids = ", ".join(map(str, use.auxiliary_layers))
        yield (
            f"With {WORDS[name]}, on {folder} (auxiliary layers {ids}, as it counts):\n\n"
            f"```sh\n{use.command}\n```\n\n{NOTES[name]}"
        )


def _serving(facts: Provenance) -> str:
    return f"""```sh
vllm serve {facts.target.path} \\
  --speculative-config '{{"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}}'
```

DRAFT is the folder of a checkpoint; one that `speculators train` wrote loads as it is. vLLM logs the mean
acceptance length, and counts at /metrics: 1 + accepted tokens / drafts. Judge a draft by this, not by the
trainer's accuracy."""


def _proofs(facts: Provenance) -> str:
    lines = [f"- {line}" for line in describe_proofs(facts.proofs)] or ["- nothing is recorded"]
    left = [f"- {text}" for text in facts.not_proven] or ["- nothing is recorded"]
    text = (
        "Applied, each to the rows it says:\n\n" + "\n".join(lines) + "\n\nNot proven:\n\n" + "\n".join(left)
    )
    if facts.accepted_findings:
        accepted = "\n".join(f"- `{finding.id}`: {finding.title}" for finding in facts.accepted_findings)
        text += "\n\nFindings that were accepted:\n\n" + accepted
    if facts.left_out:
        causes = ", ".join(f"{count} {cause}" for cause, count in facts.failed.items())
        text += f"\n\n{counted(len(facts.left_out), 'sample')} failed and were left out: {causes}."
    return text


def _sources(sources: list[SourceUse]) -> Iterable[str]:
    yield "| source | rows | kept | dropped | licence |\n|---|---|---|---|---|"
    for source in sources:
        dropped = ", ".join(f"{count:,} {reason}" for reason, count in source.dropped.items()) or "none"
        named = f"{source.name} ({source.path})"
        cells = (named, f"{source.rows:,}", f"{source.kept:,}", dropped, source.licence or "not given")
        yield "| " + " | ".join(map(_cell, cells)) + " |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def _versions(facts: Provenance) -> str:
    used = [
        ", ".join(f"{name} {version}" for name, version in sorted(engine.versions.items()))
        for engine in facts.engines
    ]
    lines = [f"- extraction: {versions}" for versions in used]
    here = ", ".join(f"{name} {version}" for name, version in facts.versions.items())
    return "\n".join(
        [
            f"- workflow: {facts.workflow}",
            *lines,
            f"- assembly: {here}",
            f"- this card: {CARD}, written by the workflow",
        ]
    )
