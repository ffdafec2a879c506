#!/usr/bin/env python3
"""Extract the hidden states of every unfinished batch of one stripe: one engine, loaded once. Writes the
pass's ledger."""

from eagle3_data import cli
from eagle3_data.config import Validation, load_section
from eagle3_data.extraction.run_pass import PassJob, run_pass
from eagle3_data.passes.stripe import stripe_arguments


def main() -> None:
    arguments = stripe_arguments(__doc__, "validation")
    job = PassJob.of_call(arguments, validation=load_section(arguments.config, "validation", Validation))
    run_pass(job, arguments.ledger)


if __name__ == "__main__":
    cli.run(main)
