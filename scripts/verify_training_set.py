#!/usr/bin/env python3
"""Verify that a finished training set is unchanged: rows, token ids, states, verdicts. Reads every byte. The
set may have been moved or copied."""

import argparse
from itertools import islice
from pathlib import Path

from eagle3_data import cli
from eagle3_data.assembly.verify import REMEDY, SetSeal, renew_seal, verify
from eagle3_data.errors import InputError
from eagle3_data.log import say
from eagle3_data.text import counted

SHOWN = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="the training set, such as results/<run>/training_set")
    parser.add_argument("--results", type=Path, help="the run's results directory: its verdicts are compared")
    parser.add_argument("--threads", type=int, default=4)
    arguments = parser.parse_args()
    faults = verify(arguments.directory, arguments.results, arguments.threads)
    shown = list(islice(faults, SHOWN))
    for fault in shown:
        say(fault)
    count = len(shown) + sum(1 for _ in faults)
    if count:
        more = f" ({count - SHOWN} more are not shown)" if count > SHOWN else ""
        raise InputError(
            f"{arguments.directory} is not as assembled: {counted(count, 'fault')}{more}; {REMEDY}"
        )
    renew_seal(arguments.directory)
    rows = SetSeal.read(arguments.directory / "seal.json").rows
    say(f"{arguments.directory}: {counted(rows, 'row')}, every byte as assembled")


if __name__ == "__main__":
    cli.run(main)
