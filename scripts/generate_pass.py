#!/usr/bin/env python3
"""Have the target answer every unfinished batch of one stripe: one engine, loaded once. Writes the pass's
ledger."""

from eagle3_data import cli
from eagle3_data.config import Generation, load_section
from eagle3_data.generation.run_pass import GenerationJob, GenerationRun
from eagle3_data.passes.stripe import stripe_arguments


def main() -> None:
    arguments = stripe_arguments(__doc__, "generation")
    generation = load_section(arguments.config, "generation", Generation)
    GenerationRun(GenerationJob.of_call(arguments, generation=generation), arguments.ledger).run()


if __name__ == "__main__":
    cli.run(main)
