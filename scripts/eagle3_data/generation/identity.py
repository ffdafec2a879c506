"""What determines the target's answers, beside what it is asked. Standard library and the configuration
only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

from eagle3_data import FORMAT_VERSION
from eagle3_data.config import Extraction, Generation, Tokenization
from eagle3_data.hashing import batch_fingerprint, hash_json
from eagle3_data.identity import NEUTRAL_ARGUMENTS
from eagle3_data.records import JsonObject
from eagle3_data.target import TargetDescription

GENERATION_VERSION = 1
"""Part of every generation id. Raise it when what is stored of an answer changes its meaning."""


@dataclass(frozen=True)
class GenerationIdentity:
    """Everything that changes answers to the same question: no data, paths, devices, and nothing that decides
    what becomes of an answer."""

    fingerprint: str
    dtype: str
    quantization: str
    engine: str
    engine_arguments: JsonObject
    max_tokens: int
    max_length: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    generation_version: int = GENERATION_VERSION
    format_version: int = FORMAT_VERSION

    @cached_property
    def generation_id(self) -> str:
        return hash_json(asdict(self))[:16]

    def batch_fingerprint(self, prompts_fingerprint: str) -> str:
        """Identifies a batch's questions together with how they are answered."""
        return batch_fingerprint(self.generation_id, prompts_fingerprint)


def engine_arguments(extraction: Extraction, generation: Generation) -> JsonObject:
    """The arguments of the engine that answers."""
    return {**extraction.engine_arguments, **generation.engine_arguments}


def identify_generation(
    target: TargetDescription, tokenization: Tokenization, extraction: Extraction, generation: Generation
) -> GenerationIdentity:
    arguments = engine_arguments(extraction, generation)
    return GenerationIdentity(
        fingerprint=target.fingerprint,
        dtype=extraction.dtype,
        quantization=target.quantization,
        engine=generation.engine,
        engine_arguments={name: value for name, value in arguments.items() if name not in NEUTRAL_ARGUMENTS},
        max_tokens=generation.max_tokens,
        max_length=tokenization.max_length,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        seed=generation.seed,
    )
