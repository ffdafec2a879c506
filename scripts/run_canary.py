#!/usr/bin/env python3
"""Send a tiny random model of the target's architecture through the engine and check what comes out. Run by extract_pass."""

import argparse
import json
from pathlib import Path

from eagle3_data import cli
from eagle3_data.child import watch_lifeline
from eagle3_data.compatibility.canary import run_canary
from eagle3_data.engines.base import EngineSettings
from eagle3_data.errors import CompatibilityError
from eagle3_data.records import write_json


def main() -> None:
    watch_lifeline()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="the pass's engine settings as JSON")
    parser.add_argument("--work", required=True, type=Path, help="scratch directory, removed at the end")
    parser.add_argument("--log", required=True, type=Path, help="file for the engine's own output")
    parser.add_argument("--output", required=True, type=Path, help="verdict to write (JSON) if all is right; else <stem>.failed.json beside it")
    arguments = parser.parse_args()
    values = json.loads(arguments.settings)
    findings = run_canary(EngineSettings(**{**values, "layers": tuple(values["layers"])}), arguments.work, arguments.log)
    record = {"findings": [finding.as_record() for finding in findings]}
    if findings:
        write_json(arguments.output.with_suffix(".failed.json"), record)
        raise CompatibilityError("; ".join(f"{finding.id}: {finding.title}" for finding in findings))
    write_json(arguments.output, record)


if __name__ == "__main__":
    cli.run(main)
