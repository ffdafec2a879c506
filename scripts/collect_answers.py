#!/usr/bin/env python3
"""Say that every batch of conversations is answered, and which failed ones are left out. Standard library
only."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.generation.collection import AnsweredBatches
from eagle3_data.log import say
from eagle3_data.passes.ledger import Gate
from eagle3_data.text import counted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", required=True, nargs="+", type=Path, help="of all batches")
    parser.add_argument("--output", required=True, type=Path, help="record to write (JSON)")
    arguments = parser.parse_args()
    gates = [Gate.read(path) for path in sorted(arguments.gates)]
    record = AnsweredBatches(
        batches={gate.batch: gate.fingerprint for gate in gates},
        left_out=[sample for gate in gates for sample in gate.left_out],
    )
    record.write(arguments.output)
    say(f"{counted(len(gates), 'batch')} answered, without {counted(len(record.left_out), 'conversation')}")


if __name__ == "__main__":
    cli.run(main)
