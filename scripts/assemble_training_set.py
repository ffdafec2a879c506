#!/usr/bin/env python3
"""Assemble the training set from validated batches in the configured formats, and open it with speculators'
own loader."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.assembly.build import Settings, build_training_set
from eagle3_data.config import Data, Extraction, Target, Tokenization, TrainingSet, load_section


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config",
        required=True,
        help="config file with sections data, extraction, target, tokenization, training_set",
    )
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--output", required=True, type=Path, help="directory to make")
    parser.add_argument("--processes", type=int, default=1, help="that convert to other formats")
    arguments = parser.parse_args()
    settings = Settings(
        data=load_section(arguments.config, "data", Data),
        extraction=load_section(arguments.config, "extraction", Extraction),
        target=load_section(arguments.config, "target", Target),
        tokenization=load_section(arguments.config, "tokenization", Tokenization),
        training_set=load_section(arguments.config, "training_set", TrainingSet),
    )
    build_training_set(settings, arguments.results, arguments.output, arguments.processes)


if __name__ == "__main__":
    cli.run(main)
