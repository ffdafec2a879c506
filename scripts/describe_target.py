#!/usr/bin/env python3
"""Describe the target model from its checkpoint directory: sizes, architecture, fingerprint. Loads
nothing."""

import argparse

from eagle3_data import cli
from eagle3_data.target import describe_target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="checkpoint directory")
    parser.add_argument("--output", required=True, help="record to write (JSON)")
    arguments = parser.parse_args()
    describe_target(arguments.target).write(arguments.output)


if __name__ == "__main__":
    cli.run(main)
