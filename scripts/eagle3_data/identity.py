"""What determines the numbers of an extraction. Standard library and the configuration only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property

from eagle3_data import FORMAT_VERSION
from eagle3_data.config import Extraction
from eagle3_data.dtypes import stored_dtype
from eagle3_data.hashing import batch_fingerprint, hash_json
from eagle3_data.records import JsonObject
from eagle3_data.target import TargetDescription
from eagle3_data.target.layers import resolve_layers

CAPTURE_VERSION = 1
"""Part of every extraction id. Raise it when what an engine captures changes its meaning."""

NEUTRAL_ARGUMENTS = {
    "block_size", "disable_custom_all_reduce", "disable_log_stats", "distributed_executor_backend",
    "enable_chunked_prefill", "enable_prefix_caching", "enforce_eager", "gpu_memory_utilization",
    "kv_cache_memory_bytes", "language_model_only", "max_num_batched_tokens", "max_num_seqs",
    "max_parallel_loading_workers", "safetensors_load_strategy", "seed", "skip_tokenizer_init",
}  # fmt: skip
"""Engine arguments that change speed or memory, not what the states mean. Every other one enters the id."""


@dataclass(frozen=True)
class ExtractionIdentity:
    """Everything that changes the numbers, and nothing else: no data, batch sizes, paths, devices or
    kernels."""

    fingerprint: str
    layers: tuple[int, ...]
    dtype: str
    quantization: str
    engine: str
    engine_arguments: JsonObject
    capture_version: int = CAPTURE_VERSION
    format_version: int = FORMAT_VERSION
    storage_dtype: str = "same"

    @cached_property
    def extraction_id(self) -> str:
        facts = asdict(self)
        if self.storage_dtype == "same":  # what was extracted before there was a choice keeps its id
            del facts["storage_dtype"]
        return hash_json(facts)[:16]

    @property
    def stored_dtype(self) -> str:
        """The data type of the states in the store."""
        return stored_dtype(self.dtype, self.storage_dtype)

    def batch_fingerprint(self, tokens_fingerprint: str) -> str:
        """Identifies a batch's samples together with what is extracted of them."""
        return batch_fingerprint(self.extraction_id, tokens_fingerprint)


def identify_extraction(target: TargetDescription, extraction: Extraction) -> ExtractionIdentity:
    """The identity of extracting from `target` with these settings. Raises ConfigError for impossible layer
    ids."""
    return ExtractionIdentity(
        fingerprint=target.fingerprint,
        layers=resolve_layers(extraction.layers, extraction.layer_convention, target.num_hidden_layers),
        dtype=extraction.dtype,
        quantization=target.quantization,
        engine=extraction.engine,
        engine_arguments={
            name: value
            for name, value in extraction.engine_arguments.items()
            if name not in NEUTRAL_ARGUMENTS
        },
        storage_dtype=extraction.storage_dtype,
    )
