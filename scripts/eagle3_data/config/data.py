"""The section `data`: the conversations to train on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from eagle3_data.config.section import Section

WILDCARDS = re.compile(r"\[[^\]]*\]|[*?]")


class Source(Section):
    """One set of conversations: a file, a directory or a dataset of the Hugging Face hub."""

    path: str = Field(
        description=(
            "File (`.json`, `.jsonl`, `.csv` or `.tsv`, each also as `.gz` or `.zst`; `.parquet`), a"
            " pattern such as `data/*.jsonl`, a folder of such files or one that `datasets` can load, or"
            " `hub:owner/name` for a dataset of the Hugging Face hub. The first line of a CSV file names"
            " the fields; turns are JSON text. In tables (Parquet, saved and hub datasets), tool arguments"
            " that are null are left out, since the format cannot tell null from absent."
        )
    )
    name: str = Field(
        "", description="Name in sample ids and in the ledger (default: the file name without its extension)."
    )
    split: str = Field("train", description="Split to read, if the dataset has several.")
    config_name: str = Field(
        "", description="Configuration (subset) to read, if the hub dataset has several."
    )
    revision: str = Field(
        "", description="Branch, tag or commit of the hub dataset (default: its main branch)."
    )
    layout: Literal["auto", "sharegpt", "messages", "prompt_response", "text", "tokens"] = Field(
        "auto",
        description=(
            "What a row holds: `sharegpt` (from/value), `messages` (OpenAI role/content), `prompt_response`,"
            " `text` (with the chat template already applied), `tokens` (`input_ids`, and `loss_mask`"
            " unless all tokens are trained), or `auto`: decided by the fields of each row."
        ),
    )
    field: str = Field(
        "",
        description=("Field that holds the turns, prompt, text or token ids (default: the usual names)."),
    )
    response_field: str = Field(
        "",
        description=(
            "Field with the response, for `prompt_response` (default: `response`, `completion` and similar"
            " names)."
        ),
    )
    mask_field: str = Field(
        "",
        description=(
            "Field with the loss mask, for `tokens`: 0 and 1, or labels with -100; every row must have it."
            " By default, the first of `loss_mask`, `assistant_masks`, `completion_mask` and `labels` that"
            " a row has; all tokens of a row with none of them are trained, and such rows are counted."
        ),
    )
    system_field: str = Field(
        "",
        description=(
            "Field with the system prompt, if it is not among the turns (default: `system`, `system_prompt`"
            " or `system_message`). A system turn in the conversation takes precedence."
        ),
    )
    input_field: str = Field(
        "",
        description=(
            "For `prompt_response`: field with the prompt's input, appended to the prompt on its own line"
            " (default: `input`, as in Alpaca, or `context`, as in Dolly)."
        ),
    )
    tools_field: str = Field(
        "tools", description="Field with the tool descriptions, as a list or as JSON text."
    )
    trained: Literal["turns", "all"] = Field(
        "turns",
        description=(
            "For `text`: train the assistant's `turns`, found by the target's generation prompt and stop"
            " tokens, or `all` of the text."
        ),
    )
    multimodal: Literal["drop", "keep"] = Field(
        "drop",
        description=(
            "Rows with images, video or audio (in fields, in parts of a turn, or as a placeholder such as"
            " `<image>` in a question) cannot be tokenized: `drop` them, or `keep` only their text."
        ),
    )
    licence: str | None = Field(
        None,
        description="Licence of the data, such as `cc-by-4.0`: copied to the training set's card.",
    )
    limit: int | None = Field(None, ge=1, description="Read at most this many rows.")
    weight: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "Fraction of the rows to use, chosen by a hash of the row number: every run uses the same rows,"
            " even after more are appended."
        ),
    )
    roles: dict[str, Literal["system", "user", "assistant", "tool"]] = Field(
        default_factory=dict,
        description=("Additional role names and their meaning, such as `{bot: assistant}`."),
    )

    @model_validator(mode="before")
    @classmethod
    def _name_from_path(cls, values: Any) -> Any:
        if isinstance(values, dict) and not values.get("name") and isinstance(values.get("path"), str):
            path = Path(values["path"].removeprefix("hub:"))
            names = (WILDCARDS.sub("", part.split(".")[0]).strip("-_ ") for part in reversed(path.parts))
            return {**values, "name": next(filter(None, names), "source")}
        return values


class Data(Section):
    """The conversations to train on."""

    sources: tuple[Source, ...] = Field(
        min_length=1, description="Sets of conversations, read in this order."
    )
    train_ratio: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "Fraction of the rows to train on. The rest, whole conversations chosen by hash, comes last and"
            " is for validation: give `speculators train --train-data-ratio` the same number (its default"
            " is 0.9)."
        ),
    )

    @field_validator("sources", mode="before")
    @classmethod
    def _only_shares(cls, sources: Any) -> Any:
        """A row's states are extracted and listed once, so no source can count more than once."""
        given = (
            [source for source in sources if isinstance(source, dict)] if isinstance(sources, list) else []
        )
        weights = [source.get("weight", 1) for source in given]
        if not all(isinstance(weight, (int, float)) for weight in weights) or max(weights, default=1) <= 1:
            return sources
        shares = ", ".join(
            f"{source.get('name') or source.get('path')}: {weight / max(weights):.4g}"
            for source, weight in zip(given, weights, strict=True)
        )
        raise ValueError(
            f"a weight of {max(weights):g} would repeat rows, but each row is used at most once; for the"
            f" same mixture, set the weights {shares}, and train {max(weights):g} times as many epochs"
        )

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sources are named {name!r}; give them different `name`s")
        return self
