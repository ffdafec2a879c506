"""The configuration: its sections, and how they are read."""

from eagle3_data.config.data import Data, Source
from eagle3_data.config.generation import Generation
from eagle3_data.config.reading import (
    load_config,
    load_section,
    read_config_file,
    write_sections,
    write_whole,
)
from eagle3_data.config.sections import (
    Compatibility,
    Config,
    Extraction,
    Target,
    Tokenization,
    TrainingSet,
    Validation,
)

__all__ = [
    "Compatibility",
    "Config",
    "Data",
    "Extraction",
    "Generation",
    "Source",
    "Target",
    "Tokenization",
    "TrainingSet",
    "Validation",
    "load_config",
    "load_section",
    "read_config_file",
    "write_sections",
    "write_whole",
]
