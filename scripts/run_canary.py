#!/usr/bin/env python3
"""Send a small random model of the target's architecture through the engine and check what comes out. Run by
extract_pass."""

import argparse
import json
from pathlib import Path

from eagle3_data import cli
from eagle3_data.canary.run import DEADLINE_S, run_canary
from eagle3_data.engines.base import EngineSettings
from eagle3_data.errors import CompatibilityError
from eagle3_data.findings import Findings, accept
from eagle3_data.log import say
from eagle3_data.system.child import watch_lifeline


def main() -> None:
    watch_lifeline()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, help="the pass's engine settings as JSON")
    parser.add_argument("--work", required=True, type=Path, help="scratch directory, removed at the end")
    parser.add_argument("--log", required=True, type=Path, help="file for the engine's own output")
    parser.add_argument(
        "--output",
        required=True,
        type=Path,
        help="verdict to write (JSON) if nothing fails; else <stem>.failed.json beside it",
    )
    parser.add_argument(
        "--deadline-s",
        type=float,
        default=DEADLINE_S,
        help=f"seconds for the engine's start and its answers (default: {DEADLINE_S:.0f})",
    )
    parser.add_argument("--allow", nargs="*", default=[], help="ids of findings that are accepted")
    arguments = parser.parse_args()
    values = json.loads(arguments.settings)
    settings = EngineSettings(**{**values, "layers": tuple(values["layers"])})
    result = Findings(
        accept(run_canary(settings, arguments.work, arguments.log, arguments.deadline_s), arguments.allow)
    )
    for finding in result.findings:
        say(f"{finding.level}{' (accepted)' if finding.accepted else ''}: {finding.id}: {finding.title}")
    if result.failed:
        result.write(arguments.output.with_suffix(".failed.json"))
        failing = (finding for finding in result.findings if finding.level == "fail" and not finding.accepted)
        raise CompatibilityError("; ".join(f"{finding.id}: {finding.title}" for finding in failing))
    result.write(arguments.output)


if __name__ == "__main__":
    cli.run(main)
