#!/usr/bin/env python3
"""Build a demo target: a tiny model with the structure of a real one, trained for some seconds on the given
conversations."""

import argparse

from eagle3_data import cli
from eagle3_data.demo.build import TARGETS, build_demo_target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, choices=sorted(TARGETS), help="which demo target")
    parser.add_argument(
        "--conversations", required=True, help="conversations to train on (JSONL, `messages` layout)"
    )
    parser.add_argument("--output", required=True, help="checkpoint directory to make")
    parser.add_argument(
        "--seed", type=int, default=0, help="the same seed gives the same weights on the same machine"
    )
    arguments = parser.parse_args()
    build_demo_target(arguments.target, arguments.conversations, arguments.output, seed=arguments.seed)


if __name__ == "__main__":
    cli.run(main)
