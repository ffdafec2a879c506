#!/usr/bin/env python3
"""Say what a run has done, what failed and why, and what to run next. Reads records only; standard library only."""

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from eagle3_data import cli
from eagle3_data.extraction.paths import ExtractionPaths
from eagle3_data.records import find_json

SHOWN_CAUSES = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", required=True, type=Path, help="the run's results directory")
    parser.add_argument("--logs", required=True, type=Path, help="the run's log directory")
    parser.add_argument("--command", default="snakemake --cores all extract", help="the command that goes on")
    arguments = parser.parse_args()
    tokens = find_json(arguments.results / "tokens/batches.json")
    if tokens is None:
        return
    paths = ExtractionPaths(arguments.results / "extraction")
    done = [batch for batch in tokens["batches"] if (arguments.results / f"extraction/batches/{batch}.json").exists()]
    validated = [batch for batch in tokens["batches"] if (arguments.results / f"validation/{batch}.json").exists()]
    print(f"\n{arguments.results}: {len(done)} of {len(tokens['batches'])} batches extracted, {len(validated)} validated")
    print(f"  {tokens['samples']} samples, {tokens['tokens']:,} tokens")
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(tokens["dropped"].items()))
    if dropped:
        print(f"  dropped by tokenization: {dropped}")
    if (arguments.results / "training_set/provenance.json").exists():
        print(f"  training set: {arguments.results}/training_set")
    if len(done) == len(tokens["batches"]):
        return
    if paths.ledgers():
        for cause, count in causes_of_last_pass(paths).most_common(SHOWN_CAUSES):
            print(f"  {count} samples: {cause}")
        print(f"  logs: {arguments.logs}/extract_pass, {arguments.logs}/extract_batch")
    else:
        print(f"  no pass has ended yet; where a rule failed, its log below {arguments.logs} says why")
    print(f"  once the cause is mended, this retries exactly what is missing:\n    {arguments.command}")


def causes_of_last_pass(paths: ExtractionPaths) -> Counter[str]:
    """The distinct causes in the newest pass, with how many samples each cost."""
    causes: Counter[str] = Counter()
    ledgers = paths.ledgers()
    for path in [path for path in ledgers if path.parent == ledgers[-1].parent]:
        ledger = find_json(path) or {"batches": {}, "failure": None}
        for outcome in ledger["batches"].values():
            for failed in outcome["failed"]:
                record = find_json(failed["record"])
                causes[headline(record["failure"]) if record else f"see {failed['record']}"] += 1
            if outcome["not_reached"]:
                causes[headline(ledger["failure"]) if ledger["failure"] else "not reached"] += outcome["not_reached"]
    return causes


def headline(failure: dict[str, Any]) -> str:
    causes = failure.get("causes") or ()
    return f"{failure['class']}: {failure['message']}" + (f" (caused by {causes[0]})" if causes else "")


if __name__ == "__main__":
    cli.run(main)
