#!/usr/bin/env python3
"""Validate every batch that one pass has extracted; the target's norm and head are loaded once. Writes the
ledger of the validation."""

import argparse
from pathlib import Path

import torch

from eagle3_data import cli
from eagle3_data.config import Extraction, Target, load_section
from eagle3_data.extraction.validate_pass import validate_pass
from eagle3_data.records.run_paths import RunPaths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config file with sections extraction and target")
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--extracted", required=True, help="pass and stripe to validate, such as 001/0")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ledger", required=True, type=Path, help="ledger to write (JSON)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    validate_pass(
        RunPaths(arguments.results),
        load_section(arguments.config, "extraction", Extraction),
        load_section(arguments.config, "target", Target),
        arguments.extracted,
        arguments.ledger,
        arguments.threads,
    )


if __name__ == "__main__":
    cli.run(main)
