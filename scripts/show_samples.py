#!/usr/bin/env python3
"""Write a page that shows some tokenized samples, the trained tokens highlighted."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.config import Target, Tokenization, load_section
from eagle3_data.records.batch_index import BatchIndex
from eagle3_data.target import TargetDescription


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, help="config file with sections target and tokenization")
    parser.add_argument("--target", required=True, help="record of describe_target")
    parser.add_argument("--samples", required=True, type=Path, help="samples.parquet of tokenize_dataset")
    parser.add_argument("--output", required=True, type=Path, help="page to write (HTML)")
    arguments = parser.parse_args()
    settings = load_section(arguments.config, "tokenization", Tokenization)

    from eagle3_data.tokenization.tokenizer import load_tokenizer
    from eagle3_data.tokenization.view import choose_samples, render_samples

    samples, total = choose_samples(arguments.samples)
    tokenizer = load_tokenizer(
        TargetDescription.read(arguments.target), load_section(arguments.config, "target", Target), settings
    )
    generated = bool(BatchIndex.read(arguments.samples.with_name("batches.json")).generation)
    page = render_samples(samples, total, tokenizer.backend, settings.max_length, generated)
    arguments.output.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    cli.run(main)
