"""The typed, frozen sections of the configuration. Unknown keys are errors; config/README.md and
config/schema.json are generated from them."""

from __future__ import annotations

import datetime
import difflib
import itertools
import os
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    field_validator,
    model_validator,
)

from eagle3_data.config.data import Data
from eagle3_data.config.generation import Generation
from eagle3_data.config.section import AnyArguments, Section
from eagle3_data.dtypes import stored_dtype
from eagle3_data.findings import IDS
from eagle3_data.records.run_paths import RunPaths


class Target(Section):
    """The target model whose hidden states are extracted."""

    path: str = Field(
        description=(
            "Directory of the checkpoint (config.json, safetensors, tokenizer), a model folder of the"
            " Hugging Face cache (`models--owner--name`), or the id `owner/name` of a model already"
            " downloaded to that cache. `demo/tiny-llama` and `demo/tiny-kimi` are built on demand."
        )
    )
    trust_remote_code: bool = Field(
        False,
        description=(
            "Allow transformers and vLLM to run the checkpoint's own Python code. Its hash is part of the"
            " fingerprint."
        ),
    )

    @field_validator("path")
    @classmethod
    def _not_empty(cls, path: str) -> str:
        if not path:
            raise ValueError("is empty; set it to the checkpoint's directory")
        return path


class Tokenization(Section):
    """How conversations become token ids and loss masks."""

    max_length: int = Field(4096, ge=2, description="Longest sample, in tokens.")
    too_long: Literal["truncate", "drop"] = Field("truncate", description="What happens to a longer one.")
    train_on: Literal["all", "last", "each"] = Field(
        "all",
        description=(
            "Which assistant turns of a conversation to train: `all`, only the `last`, or `each` in its own"
            " row that ends with it."
        ),
    )
    near_duplicates: float | None = Field(
        None,
        gt=0,
        le=1,
        description=(
            "Drop a conversation if the estimated Jaccard similarity of its word 5-grams to those of an"
            " earlier one is at least this. Takes about 5 kB of memory per row."
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
        description=(
            "The current date, for templates that print it; fixed, so that the same data always gives the"
            " same tokens."
        ),
    )
    template_arguments: AnyArguments = Field(
        default_factory=dict,
        description="Additional variables for the chat template, such as `{enable_thinking: false}`.",
    )
    reasoning_markers: tuple[
        tuple[Annotated[str, Field(min_length=1)], Annotated[str, Field(min_length=1)]], ...
    ] = Field(
        (("<think>", "</think>"), ("◁think▷", "◁/think▷")),
        description=("Markers around reasoning. An empty pair comes from the template and is not trained."),
    )
    hidden_reasoning: Literal["leave_out", "own_row"] = Field(
        "leave_out",
        description=(
            "What to do with turns whose reasoning the chat template leaves out (usually all but the last):"
            " train them without it, or (`own_row`) give each its own row that ends with the turn, if the"
            " template shows the reasoning there."
        ),
    )
    on_unclear_turn: Literal["untrained", "drop"] = Field(
        "untrained",
        description=(
            "What to do with a turn whose place in the rendered text is not certain, or whose text the"
            " template changes: leave only this turn `untrained`, or `drop` the conversation."
        ),
    )
    on_bad_row: Literal["error", "drop"] = Field(
        "error",
        description=(
            "What to do with a row that cannot be read: stop with an `error`, or `drop` and count it."
        ),
    )
    batch_tokens: int = Field(
        200_000, ge=1, description="Tokens per batch, the unit of retry and validation."
    )
    batches: int | None = Field(
        None,
        ge=1,
        description=(
            "Number of batches, instead of `batch_tokens`. Appending rows then changes every batch, but no"
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
            "Layer ids to capture, in ascending order and including the last layer (default: 2, L//2, L-3"
            " and L for a model with L layers)."
        ),
    )
    layer_convention: Literal["vllm", "speculators-0.3"] = Field(
        "vllm",
        description=(
            "How `layers` counts. `vllm`: k means after k decoder layers. `speculators-0.3` (up to 0.4): k"
            " means after the layer with index k."
        ),
    )
    dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16",
        description=(
            "Data type of the model and the states. Trainers expect bfloat16; float32 is for exact"
            " comparisons on the CPU."
        ),
    )
    storage_dtype: Literal["same", "fp8"] = Field(
        "same",
        description=(
            "How states are stored. `same`: in `dtype`. `fp8`: in half the bytes, each number in 8 bits"
            " (float8_e4m3fn), each token and slot with a scale of its own, which adds an error of 2.6 % of a"
            " state's norm. A store of its own, since the numbers differ."
        ),
    )
    tensor_parallel: int = Field(1, ge=1, description="Number of devices the model is split over.")
    jobs: int = Field(
        1,
        ge=1,
        description=(
            "Independent jobs that share the batches, each with its own devices and its own copy of the"
            " model. For a small model, several jobs are faster than one split over all devices."
        ),
    )
    store: str = Field(
        "results/store", description="Directory of the content-addressed store, which runs may share."
    )
    in_flight_tokens: int = Field(
        131_072,
        ge=1,
        description=(
            "Maximum number of tokens sent to the engine but not yet committed. Limits host memory: up to"
            " four copies of a token's states exist at a time (in the worker, while writing, in the page"
            " cache, while checking). With fewer than about five of the engine's steps (vLLM: 16,384 tokens"
            " each on large GPUs), the engine computes steps that are not full: one is being computed, one"
            " waits, and the states of two are on their way to the store."
        ),
    )
    write_timeout_s: float = Field(
        600, gt=0, description="Time limit for the file of a finished request to appear."
    )
    load_timeout_s: float = Field(7200, gt=0, description="Time limit for the engine to load the model.")
    stall_timeout_s: float = Field(
        900,
        gt=0,
        description=(
            "An engine that finishes no sample for this long is considered hung, and is killed and restarted."
        ),
    )
    engine_restarts: int = Field(
        3,
        ge=0,
        description=(
            "How often a pass restarts an engine that died or hung. Each restart loads the model again."
        ),
    )
    disk_reserve_gib: float = Field(
        1,
        ge=0,
        description=("The pass stops cleanly when the store's file system has less free space than this."),
    )
    stop_before_end_s: float = Field(
        120,
        ge=0,
        description=(
            "In a SLURM job, the pass stops cleanly this long before the walltime ends; the first half is for"
            " the replay."
        ),
    )
    max_failed_fraction: float = Field(
        0,
        ge=0,
        lt=1,
        description=(
            "Fraction of a batch's samples that may fail: the batch is then complete without them, and the"
            " training set's provenance lists them. Only failures of the samples themselves count; what a"
            " full disk, a write error or an early end of the pass prevented is retried."
        ),
    )
    engine_arguments: AnyArguments = Field(
        default_factory=dict,
        description=(
            "Additional engine arguments: for the vLLM engine, those of `vllm.LLM`, of which the speed of"
            " prefill needs none (`enforce_eager` is true and `max_num_seqs` 256 by default, the rest is"
            " vLLM's); the transformers engine takes none."
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

    @property
    def stored_dtype(self) -> str:
        """The data type of the states in the store."""
        return stored_dtype(self.dtype, self.storage_dtype)

    @model_validator(mode="after")
    def _stored_is_smaller(self) -> Self:
        if self.storage_dtype == "fp8" and self.dtype != "bfloat16":
            raise ValueError(
                f"storage_dtype fp8 is for states in bfloat16, and dtype is {self.dtype}; leave one of them"
                " out"
            )
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
            " loads the target only if the result is correct."
        ),
    )
    allow: tuple[str, ...] = Field(
        (),
        description=(
            "Ids of findings, also of the canary, that you accept. They stay in the report and in the"
            " training set's provenance."
        ),
    )
    device_memory_gib: float | None = Field(
        None,
        gt=0,
        description=(
            "Memory of one device, to check that its share of the weights fits (default: that of this"
            " machine's GPUs, if any)."
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


class Validation(Section):
    """What is proven of the target's states beyond the checks of every sample."""

    replay_samples: int = Field(
        8,
        ge=0,
        description=(
            "How many of the samples that a pass has just stored go through the loaded engine again, each"
            " alone, to be compared. They are spread over all lengths, with the longest among them. 0 turns"
            " this off, and the verdict lists it as not proven."
        ),
    )
    reference_samples: int = Field(
        2,
        ge=0,
        le=64,
        description=(
            "How many stored samples, short ones and of medium length, are compared in every slot and row"
            " with a forward pass of transformers from the target's real weights, read layer by layer. 0"
            " turns this off, and so does a forecast of more than 4 hours or more memory than there is; the"
            " training set then lists it as not proven."
        ),
    )


class TrainingSet(Section):
    """The assembled training set."""

    formats: tuple[Literal["speculators", "specforge", "modelopt"], ...] = Field(
        ("speculators",),
        description=(
            "Formats to write. speculators' is always there, since its states are links into the store;"
            " `specforge` and `modelopt` are written below it and take as much room as the states each."
        ),
    )
    draft_vocab_size: Annotated[int, Field(ge=1)] | Literal["recommended", "full"] = Field(
        "recommended",
        description=(
            "Size of the draft model's vocabulary. `recommended`: the smallest of 8000, 16000 and 32000"
            " that covers 99.5 % of the trained tokens, else the target's own. `full`: the target's own."
        ),
    )


class Config(Section):
    """The whole configuration."""

    run: str = Field(
        "demo",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the run; its files are in results/<run> and logs/<run>.",
    )
    private: bool = Field(
        False,
        description=(
            "Whether only you may read the store, results and logs written from now on. Otherwise, your"
            " umask decides."
        ),
    )
    target: Target
    data: Data
    tokenization: Tokenization = Tokenization()
    extraction: Extraction = Extraction()
    generation: Generation = Generation()
    compatibility: Compatibility = Compatibility()
    validation: Validation = Validation()
    training_set: TrainingSet = TrainingSet()

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        run = RunPaths.of_run(self.run)
        stores = {"extraction.store": self.extraction.store, "generation.store": self.generation.store}
        for (name, place), outputs in itertools.product(stores.items(), (run.results, run.logs)):
            if _overlap(os.path.realpath(place), os.path.realpath(outputs)):
                raise ValueError(
                    f"{name} ({place}) and the run's own {outputs} overlap, so rerunning a rule could delete"
                    " what is stored; move the store, or rename the run"
                )
        if _overlap(*map(os.path.realpath, stores.values())):
            raise ValueError(
                f"generation.store ({self.generation.store}) and extraction.store ({self.extraction.store})"
                " overlap; give each its own directory"
            )
        bound, longest = self.extraction.in_flight_tokens, self.tokenization.max_length
        if bound < longest:
            raise ValueError(
                f"extraction.in_flight_tokens ({bound}) is less than tokenization.max_length ({longest}): the"
                " longest sample would never be sent"
            )
        self.generation.check_agrees_with(self.data, self.tokenization)
        return self


def _overlap(first: str, second: str) -> bool:
    """Whether two real paths are the same, or one lies in the other."""
    return os.path.commonpath([first, second]) in (first, second)
