"""What the workflow needs to know about the target model, read from its checkpoint directory."""

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
