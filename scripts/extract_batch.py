#!/usr/bin/env python3
"""The gate of one batch of extraction: succeed if a pass completed it, else fail with the recorded causes."""

from eagle3_data import cli
from eagle3_data.passes.gate import run_gate


def main() -> None:
    run_gate(__doc__)


if __name__ == "__main__":
    cli.run(main)
