"""The section `generation`: the target's own answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Self

from pydantic import Field, model_validator

from eagle3_data.config.section import AnyArguments, Section

if TYPE_CHECKING:
    from eagle3_data.config.data import Data
    from eagle3_data.config.sections import Tokenization


class Generation(Section):
    """Whether the target itself answers the conversations, and how. Its engine is loaded as
    `extraction` says: `dtype`, `tensor_parallel`, `jobs`, `engine_arguments`, time limits and
    `max_failed_fraction` hold for both."""

    responses: Literal["dataset", "target"] = Field(
        "dataset",
        description=(
            "Whose answers are trained: the `dataset`'s, or those that the `target` gives to the same"
            " questions. A draft must predict what the target says, so `target` is better, and takes a second"
            " pass on the GPUs."
        ),
    )
    turns: Literal["all", "last"] = Field(
        "all",
        description=(
            "Which turns of a conversation the target answers: `all`, each on its own earlier answers, or the"
            " `last` only, on the data set's."
        ),
    )
    max_tokens: int = Field(1024, ge=1, description="Longest answer, in tokens.")
    temperature: float = Field(
        0.0, ge=0, description="Sampling temperature; 0 takes the most likely token each time."
    )
    top_p: float = Field(1.0, gt=0, le=1, description="Sample from the most likely tokens of this share.")
    top_k: int = Field(0, ge=0, description="Sample from so many of the most likely tokens; 0: from all.")
    seed: int = Field(0, ge=0, description="Changes every sampled answer.")
    n: int = Field(1, ge=1, le=64, description="Answers to each conversation; several need a temperature.")
    cut_answers: Literal["keep", "drop"] = Field(
        "keep",
        description=(
            "What to do with an answer that reaches `max_tokens`, or the end of `tokenization.max_length`:"
            " `keep` it, without an end, or `drop` it. The conversation ends there."
        ),
    )
    looping_answers: Literal["keep", "drop"] = Field(
        "drop",
        description=(
            "What to do with a cut answer that ends in repetitions of the same tokens. The conversation ends"
            " there."
        ),
    )
    tools: Literal["cut", "drop"] = Field(
        "cut",
        description=(
            "What to do with conversations that go on with the result of a tool, which the target's own call"
            " would not have produced: `cut` them before it, or `drop` them."
        ),
    )
    engine: str = Field(
        "eagle3_data.generation.vllm_engine:VllmGenerator",
        pattern=r"^[\w.]+:\w+$",
        description="Class of the engine that answers, as `module:Class`.",
    )
    engine_arguments: AnyArguments = Field(
        default_factory=dict,
        description="Arguments of `vllm.LLM` for this pass, in addition to `extraction.engine_arguments`.",
    )
    store: str = Field(
        "results/generations",
        description="Directory of the content-addressed store of answers, which runs may share.",
    )
    in_flight: int = Field(1024, ge=1, description="Conversations that the engine has at a time.")

    @property
    def is_wanted(self) -> bool:
        return self.responses == "target"

    @model_validator(mode="after")
    def _several_differ(self) -> Self:
        if self.n > 1 and self.temperature == 0:
            raise ValueError(
                f"n is {self.n}, but at temperature 0 all answers to a question are the same; set a"
                " temperature, or n: 1"
            )
        return self

    @model_validator(mode="after")
    def _reserved_arguments(self) -> Self:
        reserved = {
            "model": "target.path", "dtype": "extraction.dtype",
            "tensor_parallel_size": "extraction.tensor_parallel", "max_model_len": "tokenization.max_length",
            "trust_remote_code": "target.trust_remote_code",
        }  # fmt: skip
        for name in reserved.keys() & self.engine_arguments.keys():
            raise ValueError(f"engine_arguments.{name} is set by the workflow; use {reserved[name]}")
        return self

    def check_agrees_with(self, data: Data, tokenization: Tokenization) -> None:
        """Raises ValueError where the target's answers leave a source or a key of `tokenization` without a
        meaning."""
        if not self.is_wanted:
            return
        for source in data.sources:
            if source.layout in ("text", "tokens"):
                raise ValueError(
                    f"the source {source.name} has layout {source.layout}, which has no questions that the"
                    " target could answer (generation.responses: target); give conversations, or leave it out"
                )
        if tokenization.train_on != "all":
            raise ValueError(
                f"tokenization.train_on is {tokenization.train_on!r}, but with generation.responses:"
                " target, the turns that the target answered are trained; choose them with"
                " generation.turns, and leave train_on at 'all'"
            )
        if tokenization.hidden_reasoning != "leave_out":
            raise ValueError(
                "tokenization.hidden_reasoning is 'own_row', but with generation.responses: target,"
                " each answer is trained as the target gave it, with its reasoning; leave it at 'leave_out'"
            )
