#!/usr/bin/env python3
"""Tokenize conversations with the target's chat template: token ids, loss masks, batches, and a
ledger of every row."""

import argparse
import os
from pathlib import Path

from eagle3_data import cli
from eagle3_data.config import Data, Generation, Target, Tokenization, load_section
from eagle3_data.generation.collection import AnsweredBatches
from eagle3_data.log import say
from eagle3_data.target import TargetDescription


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config",
        required=True,
        help="config file with sections data, target and tokenization",
    )
    parser.add_argument("--target", required=True, help="record of describe_target")
    parser.add_argument(
        "--output-dir",
        required=True,
        type=Path,
        help=("directory for samples.parquet, batches.json, ledger.parquet, token_frequencies.npy"),
    )
    parser.add_argument(
        "--generation-id",
        help="train the target's own answers under this id, not the data set's (with section generation)",
    )
    parser.add_argument("--answers", type=Path, help="record of collect_answers, with --generation-id")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="by default as many as there are CPUs to use",
    )
    arguments = parser.parse_args()
    data = load_section(arguments.config, "data", Data)
    tokenization = load_section(arguments.config, "tokenization", Tokenization)
    target = load_section(arguments.config, "target", Target)
    description = TargetDescription.read(arguments.target)

    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # the processes are the parallelism; read when the library first encodes
    )
    from eagle3_data.generation.samples import answer_reader
    from eagle3_data.tokenization.dataset import MakeReader, TokenizationJob, tokenize_dataset

    job = TokenizationJob(data, tokenization, target, description)
    make_reader: MakeReader | None = None
    if arguments.generation_id:
        generation = load_section(arguments.config, "generation", Generation)
        left_out = {sample.key for sample in AnsweredBatches.read(arguments.answers).left_out}
        make_reader = answer_reader(job, generation, arguments.generation_id, left_out)
    tokenized = tokenize_dataset(job, arguments.output_dir, max(1, arguments.processes), make_reader)
    say(tokenized.summary())


if __name__ == "__main__":
    cli.run(main)
