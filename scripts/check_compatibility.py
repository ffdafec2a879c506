#!/usr/bin/env python3
"""Find in seconds, before any model is loaded, what would make hidden-state extraction fail."""

import argparse
from pathlib import Path

from eagle3_data import cli
from eagle3_data.compatibility import report
from eagle3_data.compatibility.findings import Findings
from eagle3_data.errors import CompatibilityError
from eagle3_data.records import read_json, write_json


def installed(arguments: argparse.Namespace) -> None:
    """The installed packages, the configured target and the tokenized data: what the rule runs."""
    from eagle3_data import config
    from eagle3_data.compatibility.installed import check
    from eagle3_data.target import TargetDescription

    result = check(
        TargetDescription.read(arguments.target),
        config.load_section(arguments.config, "target", config.Target),
        config.load_section(arguments.config, "tokenization", config.Tokenization),
        config.load_section(arguments.config, "extraction", config.Extraction),
        config.load_section(arguments.config, "compatibility", config.Compatibility),
        read_json(arguments.batches),
    )
    cli.say(report.render(result, "compatibility of the installed packages with this run"))
    write_report(result, Path(arguments.output))


def write_report(result: Findings, output: Path) -> None:
    """The record, or on failure a sibling: Snakemake deletes the output of a rule that fails, and the reasons with it."""
    failed = output.with_name(f"{output.stem}.failed{output.suffix}")
    if not result.failed:
        failed.unlink(missing_ok=True)
        write_json(output, result.as_record())
        return
    write_json(failed, result.as_record())
    names = ", ".join(dict.fromkeys(finding.id for finding in result.findings if finding.level == "fail" and not finding.accepted))
    raise CompatibilityError(f"extraction would fail ({names}); the remedies are above and in {failed}. To go on knowingly, list the id in compatibility.allow")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("installed", help=installed.__doc__)
    command.add_argument("--config", required=True, help="configuration: JSON text, or a YAML or JSON file")
    command.add_argument("--target", required=True, help="record of describe_target")
    command.add_argument("--batches", required=True, help="record of tokenize_dataset")
    command.add_argument("--output", required=True, help="report to write (JSON); on failure NAME.failed.json beside it")
    command.set_defaults(run=installed)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    cli.run(main)
