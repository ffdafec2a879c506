"""The typed, frozen sections of the configuration. Unknown keys are errors; config/README.md and
config/schema.json are generated from them."""

from __future__ import annotations

import datetime
import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from eagle3_data.findings import IDS
from eagle3_data.records.run_paths import RunPaths


class Section(BaseModel):
    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, ser_json_inf_nan="constants"
    )


def _numbers_from_text(value: Any) -> Any:
    """`1e-5` as the number it is: YAML 1.1, which Snakemake reads, takes it as text (it wants `1.0e-5`)."""
    if isinstance(value, Mapping):
        return {key: _numbers_from_text(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_numbers_from_text(item) for item in value]
    return float(value) if isinstance(value, str) and EXPONENT_NUMBER.fullmatch(value) else value


EXPONENT_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
AnyArguments = Annotated[dict[str, Any], BeforeValidator(_numbers_from_text)]
"""Arguments that are handed on to a library as they are."""


class Target(Section):
    """The target model whose hidden states are extracted."""

    path: str = Field(
        description=(
            "Directory of the checkpoint (config.json, safetensors, tokenizer), a model's folder in the"
            " Hugging Face cache (`models--owner--name`), or the id `owner/name` of a model that was"
            " downloaded there. `demo/tiny-llama` and `demo/tiny-kimi` are built on the spot."
        )
    )
    trust_remote_code: bool = Field(
        False,
        description=(
            "Let transformers and vLLM run Python code that lies in the checkpoint. Its hash enters the"
            " fingerprint."
        ),
    )

    @field_validator("path")
    @classmethod
    def _not_empty(cls, path: str) -> str:
        if not path:
            raise ValueError("is empty; set it to the checkpoint's directory")
        return path


WILDCARDS = re.compile(r"\[[^\]]*\]|[*?]")


class Source(Section):
    """One set of conversations: a file, a directory or a dataset of the Hugging Face hub."""

    path: str = Field(
        description=(
            "File (`.json`, `.jsonl`, `.csv` or `.tsv`, each also as `.gz` or `.zst`; `.parquet`), a pattern"
            " such as `data/*.jsonl`, a folder of such files or one that `datasets` can load, or"
            " `hub:owner/name` of the Hugging Face hub. A CSV file's first line names the fields; turns in it"
            " are JSON text. In tables (Parquet, saved and hub datasets) a tool argument that is null is left"
            " out: the format gives every row the arguments of all rows, so null and absent are the same"
            " there."
        )
    )
    name: str = Field(
        "", description="Name in sample ids and in the ledger; by default the file name without its ending."
    )
    split: str = Field("train", description="Split to read, where the source is a dataset with several.")
    config_name: str = Field(
        "", description="Configuration (subset) to read, where a dataset of the hub has several."
    )
    revision: str = Field(
        "", description="Branch, tag or commit of a dataset of the hub; by default its main branch."
    )
    layout: Literal["auto", "sharegpt", "messages", "prompt_response", "text", "tokens"] = Field(
        "auto",
        description=(
            "What a row holds: `sharegpt` (from/value), `messages` (OpenAI role/content), `prompt_response`,"
            " `text` (the chat template is already applied), `tokens` (`input_ids`, and `loss_mask` if not"
            " all are trained), or `auto`: told by each row's fields."
        ),
    )
    field: str = Field(
        "",
        description=(
            "Field of a row that holds the turns, the prompt, the text or the ids; by default the usual"
            " names."
        ),
    )
    response_field: str = Field(
        "",
        description=(
            "Field with the response, for `prompt_response`; by default `response`, `completion` and the"
            " like."
        ),
    )
    mask_field: str = Field(
        "",
        description=(
            "Field with the loss mask, for `tokens`: 0 and 1, or labels with -100; every row must have it. By"
            " default the first there is of `loss_mask`, `assistant_masks`, `completion_mask` and `labels`; a"
            " row without any is trained whole, and counted."
        ),
    )
    system_field: str = Field(
        "",
        description=(
            "Field with the system prompt beside the turns; by default `system`, `system_prompt` or"
            " `system_message`. A system turn of the conversation's own takes its place."
        ),
    )
    input_field: str = Field(
        "",
        description=(
            "For `prompt_response`: field with what the prompt is about, which is put behind it in a line of"
            " its own; by default `input` (Alpaca) or `context` (Dolly)."
        ),
    )
    tools_field: str = Field(
        "tools", description="Field with the descriptions of the tools, a list or its JSON text."
    )
    trained: Literal["turns", "all"] = Field(
        "turns",
        description=(
            "For `text`: train the assistant's `turns`, found by the target's own generation prompt and stop"
            " tokens, or `all` of the text."
        ),
    )
    multimodal: Literal["drop", "keep"] = Field(
        "drop",
        description=(
            "What becomes of rows with images, video or audio, which cannot be tokenized (in fields, in parts"
            " of a turn, or as a placeholder such as `<image>` in a question): `drop` them, or `keep` their"
            " text."
        ),
    )
    limit: int | None = Field(None, ge=1, description="Read only so many rows.")
    weight: float = Field(
        1.0,
        gt=0,
        le=1,
        description=(
            "Share of the rows to use, drawn by a hash of their number: the same ones in every run, whatever"
            " is appended."
        ),
    )
    roles: dict[str, Literal["system", "user", "assistant", "tool"]] = Field(
        default_factory=dict, description="Further role names and what they mean, such as `{bot: assistant}`."
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
            "Share of the rows to train on; the rest, whole conversations drawn by hash, is put last for"
            " validation. `speculators train --train-data-ratio` cuts exactly there if given the same number"
            " (its default is 0.9)."
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
            f"a weight of {max(weights):g} would repeat rows, and each row is taken once at most; for the"
            f" same mixture set the weights {shares}, and train {max(weights):g} times as many epochs"
        )

    @model_validator(mode="after")
    def _distinct_names(self) -> Self:
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two sources are named {name!r}; give them different `name`s")
        return self


class Tokenization(Section):
    """How conversations become token ids and loss masks."""

    max_length: int = Field(4096, ge=2, description="Longest sample, in tokens.")
    too_long: Literal["truncate", "drop"] = Field("truncate", description="What happens to a longer one.")
    train_on: Literal["all", "last", "each"] = Field(
        "all",
        description=(
            "Assistant turns to train: `all` of a conversation, the `last` one, or `each` one in a row of its"
            " own that ends with it."
        ),
    )
    near_duplicates: float | None = Field(
        None,
        gt=0,
        le=1,
        description=(
            "Drop a conversation whose turns share at least this part of their word 5-grams (estimated"
            " Jaccard index) with an earlier one. About 5 kB of memory a row."
        ),
    )
    train_end_of_turn: bool = Field(
        True, description="Whether the token that ends an assistant turn is trained."
    )
    chat_template: str | None = Field(
        None, description="File with the chat template to use instead of the target's own."
    )
    date: str = Field(
        "2025-01-01",
        pattern=r"^\d{4}-\d{2}-\d{2}$",
        description="Today, for templates that print it: the same data gives the same tokens on every day.",
    )
    template_arguments: AnyArguments = Field(
        default_factory=dict,
        description="Further variables of the chat template, such as `{enable_thinking: false}`.",
    )
    reasoning_markers: tuple[
        tuple[Annotated[str, Field(min_length=1)], Annotated[str, Field(min_length=1)]], ...
    ] = Field(
        (("<think>", "</think>"), ("◁think▷", "◁/think▷")),
        description=(
            "Texts around reasoning. A pair with nothing between them is the template's scaffold and not"
            " trained."
        ),
    )
    hidden_reasoning: Literal["leave_out", "own_row"] = Field(
        "leave_out",
        description=(
            "Turns whose reasoning the chat template does not show, mostly all but the last: they are trained"
            " without it, or `own_row` gives each a row that ends with it, if it is shown there."
        ),
    )
    on_unclear_turn: Literal["untrained", "drop"] = Field(
        "untrained",
        description=(
            "A turn whose place in the rendering cannot be proved, or that the template does not show as it"
            " is: it alone is context and not trained, or the whole conversation is dropped."
        ),
    )
    on_bad_row: Literal["error", "drop"] = Field(
        "error", description="A row that cannot be read stops the rule, or is dropped and counted."
    )
    batch_tokens: int = Field(
        200_000, ge=1, description="Tokens of a batch, the unit of retry and validation."
    )
    batches: int | None = Field(
        None,
        ge=1,
        description=(
            "Number of batches, instead of `batch_tokens`. Appended rows then change all of them, but no"
            " sample."
        ),
    )

    @field_validator("date", mode="before")
    @classmethod
    def _unquoted_date(cls, value: Any) -> Any:
        return (
            value.isoformat() if isinstance(value, datetime.date) else value
        )  # YAML reads a bare 2025-06-01 as a date

    @field_validator("date")
    @classmethod
    def _of_the_calendar(cls, value: str) -> str:
        try:
            datetime.date.fromisoformat(value)
        except ValueError:
            raise ValueError(f"{value} is not a calendar date") from None
        return value


class Extraction(Section):
    """How hidden states are extracted."""

    engine: str = Field(
        "eagle3_data.engines.vllm.engine:VllmEngine",
        pattern=r"^[\w.]+:\w+$",
        description="Engine class as `module:Class`.",
    )
    layers: tuple[int, ...] | None = Field(
        None,
        description=(
            "Layer ids to capture, ascending, the last layer included; by default 2, L//2, L-3 and L of an"
            " L-layer model."
        ),
    )
    layer_convention: Literal["vllm", "speculators-0.3"] = Field(
        "vllm",
        description=(
            "How `layers` counts. `vllm`: k = after k decoder layers. `speculators-0.3` (to 0.4): k = after"
            " the layer of index k."
        ),
    )
    dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16",
        description=(
            "Data type of model and states. Trainers want bfloat16; float32 is for proofs on the CPU."
        ),
    )
    tensor_parallel: int = Field(1, ge=1, description="Devices the model is split over.")
    jobs: int = Field(
        1,
        ge=1,
        description=(
            "Independent jobs that share the batches, each with its own devices and its own copy of the"
            " model. On one machine a small model is extracted faster by several jobs than by one that is"
            " split over all devices."
        ),
    )
    store: str = Field(
        "results/store", description="Directory of the content-addressed store; runs may share it."
    )
    in_flight_tokens: int = Field(
        65_536,
        ge=1,
        description=(
            "Tokens handed to the engine and not yet committed; bounds host memory: a token's states are held"
            " up to four times (in the worker, as it is written, in the page cache, as it is checked)."
        ),
    )
    write_timeout_s: float = Field(
        600, gt=0, description="How long a finished request's file may take to appear."
    )
    load_timeout_s: float = Field(7200, gt=0, description="How long the engine may take to load the model.")
    stall_timeout_s: float = Field(
        900,
        gt=0,
        description="An engine that finishes no sample for so long hangs: it is ended and started again.",
    )
    engine_restarts: int = Field(
        3,
        ge=0,
        description="How often a pass starts an engine again that died or hung. Each time loads the model.",
    )
    disk_reserve_gib: float = Field(
        1, ge=0, description="The pass stops cleanly when less than this is free where the store is."
    )
    stop_before_end_s: float = Field(
        120, ge=0, description="In a SLURM job, the pass stops cleanly so long before the walltime ends."
    )
    max_failed_fraction: float = Field(
        0,
        ge=0,
        lt=1,
        description=(
            "Share of a batch's samples that may fail by their own fault: it is complete without them, and"
            " the training set's provenance lists them. A full disk, a write error, or whatever ends a pass"
            " early is not theirs: what it cost is retried."
        ),
    )
    engine_arguments: AnyArguments = Field(
        default_factory=dict,
        description=(
            "Further arguments of the engine: of the vLLM engine those of `vllm.LLM`, the transformers engine"
            " takes none."
        ),
    )

    @model_validator(mode="after")
    def _reserved_arguments(self) -> Self:
        reserved = {
            "model": "target.path", "dtype": "extraction.dtype",
            "tensor_parallel_size": "extraction.tensor_parallel", "max_model_len": "tokenization.max_length",
            "trust_remote_code": "target.trust_remote_code", "speculative_config": "extraction.layers",
            "kv_transfer_config": "extraction.store",
        }  # fmt: skip
        for name in reserved.keys() & self.engine_arguments.keys():
            raise ValueError(f"engine_arguments.{name} is set by the workflow; use {reserved[name]}")
        return self

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        if self.engine.startswith("eagle3_data.engines.transformers:"):
            if self.engine_arguments:
                given = ", ".join(self.engine_arguments)
                raise ValueError(
                    f"the transformers engine takes no engine_arguments (given: {given}); leave them out, or"
                    " use the vLLM engine"
                )
            if self.tensor_parallel > 1:
                raise ValueError(
                    f"the transformers engine uses one device, tensor_parallel is {self.tensor_parallel}; set"
                    " it to 1, or use the vLLM engine"
                )
        return self


class Compatibility(Section):
    """What is checked before the target model is loaded."""

    canary: Literal["inline", "off"] = Field(
        "inline",
        description=(
            "`inline`: the job first extracts from a tiny random model of the target's architecture, and"
            " loads the target only if that is right."
        ),
    )
    allow: tuple[str, ...] = Field(
        (),
        description=(
            "Ids of findings accepted knowingly, those of the canary too; they stay in the report and in the"
            " training set's provenance."
        ),
    )
    device_memory_gib: float | None = Field(
        None,
        gt=0,
        description=(
            "Memory of one device, to check that its share of the weights fits; by default that of this"
            " machine's GPUs, if it has any."
        ),
    )

    @field_validator("canary", mode="before")
    @classmethod
    def _unquoted_off(cls, value: Any) -> Any:
        return "off" if value is False else value  # YAML 1.1 reads a bare `off` as false

    @field_validator("allow")
    @classmethod
    def _known_findings(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in IDS:
                near = " or ".join(difflib.get_close_matches(name, IDS, n=2))
                raise ValueError(
                    f"there is no finding {name!r}; "
                    + (f"did you mean {near}?" if near else "copy the id from the report")
                )
        return names


class TrainingSet(Section):
    """The assembled training set."""

    draft_vocab_size: int | None = Field(
        None,
        ge=1,
        description=(
            "Size of the draft model's vocabulary; by default no map is made and the draft uses the target's."
        ),
    )


class Config(Section):
    """The whole configuration."""

    run: str = Field(
        "demo",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the run: results/<run>, logs/<run>.",
    )
    private: bool = Field(
        False,
        description=(
            "Whether only you may read what is written from now on: store, results and logs. Otherwise the"
            " umask decides, as for any program."
        ),
    )
    target: Target
    data: Data
    tokenization: Tokenization = Tokenization()
    extraction: Extraction = Extraction()
    compatibility: Compatibility = Compatibility()
    training_set: TrainingSet = TrainingSet()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        run = RunPaths.of_run(self.run)
        store = os.path.realpath(self.extraction.store)
        for outputs in (run.results, run.logs):
            if _overlap(store, os.path.realpath(outputs)):
                raise ValueError(
                    f"extraction.store ({self.extraction.store}) and the run's own {outputs} lie in one"
                    " another: what the run makes again would delete states; move the store, or rename the"
                    " run"
                )
        bound, longest = self.extraction.in_flight_tokens, self.tokenization.max_length
        if bound < longest:
            raise ValueError(
                f"extraction.in_flight_tokens ({bound}) is less than tokenization.max_length ({longest}): the"
                " longest sample would never be sent"
            )
        return self


def _overlap(first: str, second: str) -> bool:
    """Whether two real paths are the same, or one lies in the other."""
    return os.path.commonpath([first, second]) in (first, second)
