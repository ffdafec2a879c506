#!/usr/bin/env python3
"""Compare a few stored samples, in every slot and row, with a forward pass of transformers from the target's
real weights. Computes nothing where engines of the same versions passed before."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.config import Extraction, Target, Validation, load_section
from eagle3_data.errors import EngineError
from eagle3_data.identity import identify_extraction
from eagle3_data.log import say
from eagle3_data.records.run_paths import RunPaths
from eagle3_data.target import TargetDescription, require_described
from eagle3_data.validation.reference_verdict import Reference


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", required=True, help="config file with sections extraction, target and validation"
    )
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument(
        "--output",
        required=True,
        help="record to write (JSON), if no state is wrong; else <stem>.failed.json beside it",
    )
    arguments = parser.parse_args()
    extraction = load_section(arguments.config, "extraction", Extraction)
    number = load_section(arguments.config, "validation", Validation).reference_samples
    trust_remote_code = load_section(arguments.config, "target", Target).trust_remote_code
    run = RunPaths(arguments.results)
    target = TargetDescription.read(run.target)
    require_described(target, run.target)
    identity = identify_extraction(target, extraction)
    if number:
        from eagle3_data.passes.reference import ReferenceRun  # transformers takes seconds

        found = ReferenceRun(run, target, extraction, identity).prove(number, trust_remote_code)
    else:
        found = Reference.without(identity.extraction_id, "off", "validation.reference_samples is 0")
    run.failed_reference.unlink(missing_ok=True)
    found.write(run.failed_reference if found.status == "failed" else arguments.output)
    for line in found.describe():
        say(line)
    if found.status == "failed":
        store = f"{extraction.store}/{identity.extraction_id}"
        raise EngineError(
            f"the engine stored wrong states of {target.path}, so nothing of {store} may be trained on. Move"
            " that directory away, then run the same command with another vLLM version or with"
            " extraction.engine: eagle3_data.engines.transformers:TransformersEngine, which extracts again."
            f" All figures: {run.failed_reference}"
        )


if __name__ == "__main__":
    cli.run(main)
