#!/usr/bin/env python3
"""Turn conversations into what the target is asked: prompts in batches, and a ledger of every row."""

import argparse
import os
from pathlib import Path

from eagle3_data import cli
from eagle3_data.config import Data, Generation, Target, Tokenization, load_section
from eagle3_data.log import say
from eagle3_data.target import TargetDescription
from eagle3_data.text import counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", required=True, help="config file with sections data, target, tokenization and generation"
    )
    parser.add_argument("--target", required=True, help="record of describe_target")
    parser.add_argument(
        "--output-dir",
        required=True,
        type=Path,
        help="directory for prompts.parquet, ledger.parquet and batches.json",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="by default as many as there are CPUs to use",
    )
    arguments = parser.parse_args()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    from eagle3_data.generation.prompts import plan_prompts
    from eagle3_data.tokenization.dataset import TokenizationJob

    job = TokenizationJob(
        load_section(arguments.config, "data", Data),
        load_section(arguments.config, "tokenization", Tokenization),
        load_section(arguments.config, "target", Target),
        TargetDescription.read(arguments.target),
    )
    generation = load_section(arguments.config, "generation", Generation)
    index = plan_prompts(job, generation, arguments.output_dir, max(1, arguments.processes))
    say(
        "\n  ".join(
            (
                f"{counted(index.samples, 'conversation')} to ask, in {counted(len(index.batches), 'batch')}",
                *index.remarks,
            )
        )
    )


if __name__ == "__main__":
    cli.run(main)
