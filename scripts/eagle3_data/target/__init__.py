"""What the workflow must know of the target model, from its checkpoint directory alone."""

from eagle3_data.target.description import (
    TargetDescription,
    architectures_of,
    check_weights,
    describe_target,
    fingerprint_of,
    max_positions,
    read_model_config,
    require_described,
    text_config,
    weight_files,
)

__all__ = [
    "TargetDescription",
    "architectures_of",
    "check_weights",
    "describe_target",
    "fingerprint_of",
    "max_positions",
    "read_model_config",
    "require_described",
    "text_config",
    "weight_files",
]
