#!/usr/bin/env python3
"""Have the target answer every unfinished batch of one stripe: one engine, loaded once. Writes the pass's
ledger."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.config import Compatibility, Extraction, Generation, Target, Tokenization, load_section
from eagle3_data.generation.run_pass import GenerationJob, GenerationRun
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.target import TargetDescription


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config",
        required=True,
        help="config file with sections target, tokenization, extraction, generation, compatibility",
    )
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--pass-number", required=True, help="three digits")
    parser.add_argument("--stripe", required=True, type=int)
    parser.add_argument("--engine-log", required=True, type=Path, help="file for the engine's own output")
    parser.add_argument("--ledger", required=True, type=Path, help="ledger to write (JSON)")
    arguments = parser.parse_args()
    job = GenerationJob(
        target=load_section(arguments.config, "target", Target),
        tokenization=load_section(arguments.config, "tokenization", Tokenization),
        extraction=load_section(arguments.config, "extraction", Extraction),
        generation=load_section(arguments.config, "generation", Generation),
        compatibility=load_section(arguments.config, "compatibility", Compatibility),
        description=TargetDescription.read(RunPaths(arguments.results).target),
        results=arguments.results,
        number=arguments.pass_number,
        stripe=arguments.stripe,
        engine_log=arguments.engine_log,
    )
    GenerationRun(job, arguments.ledger).run()


if __name__ == "__main__":
    cli.run(main)
