#!/usr/bin/env python3
"""Find in seconds, before loading any model, what would make hidden-state extraction fail."""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from eagle3_data import cli
from eagle3_data.compatibility.run import history, report
from eagle3_data.compatibility.run.static import Model, Question, check_tree
from eagle3_data.compatibility.source import releases
from eagle3_data.compatibility.vllm.wire_contract import EnginePlan
from eagle3_data.errors import CompatibilityError, ConfigError, InputError, headline
from eagle3_data.findings import Findings, accept, in_order
from eagle3_data.log import say
from eagle3_data.records import JsonObject, write_json
from eagle3_data.target.layers import OFFSETS

WRONG_USE = 2
ENGINE_ARGUMENTS = "--engine-arguments must be a JSON object, such as '{\"enable_prefix_caching\": false}'"
INSTALLED_TITLE = "compatibility of the installed packages with this run"


def installed(arguments: argparse.Namespace) -> None:
    """Check the installed packages against the configured target and the tokenized data (what the rule
    runs)."""
    from eagle3_data import config
    from eagle3_data.canary.run import foresee_canary
    from eagle3_data.compatibility.run.installed import check
    from eagle3_data.records.batch_index import BatchIndex
    from eagle3_data.target import TargetDescription

    target = TargetDescription.read(arguments.target)
    section = config.load_section(arguments.config, "target", config.Target)
    extraction = config.load_section(arguments.config, "extraction", config.Extraction)
    compatibility = config.load_section(arguments.config, "compatibility", config.Compatibility)
    result = check(
        target,
        section,
        config.load_section(arguments.config, "tokenization", config.Tokenization),
        extraction,
        compatibility,
        BatchIndex.read(arguments.batches),
        Path(arguments.output).parent,
        config.load_section(arguments.config, "training_set", config.TrainingSet),
    )
    foreseen = foresee_canary(Path(target.path), extraction.tensor_parallel, section.trust_remote_code)
    findings = in_order([*result.findings, *accept(foreseen, compatibility.allow)])
    result = replace(result, findings=findings)
    report.show(result, INSTALLED_TITLE)
    write_report(result, Path(arguments.output))


def write_report(result: Findings, output: Path) -> None:
    """Write the record and its page. On failure they get other names, since Snakemake deletes the outputs of
    a failed rule."""
    failed = output.with_name(f"{output.stem}.failed{output.suffix}")
    written = failed if result.failed else output
    result.write(written)
    written.with_suffix(".html").write_text(report.render_html(result, INSTALLED_TITLE), encoding="utf-8")
    if not result.failed:
        failed.unlink(missing_ok=True)
        failed.with_suffix(".html").unlink(missing_ok=True)
        return
    names = ", ".join(
        dict.fromkeys(
            finding.id for finding in result.findings if finding.level == "fail" and not finding.accepted
        )
    )
    raise CompatibilityError(
        f"extraction would fail ({names}); see the remedies above and in {failed}. To extract all the same,"
        " list the ids in compatibility.allow"
    )


def static(arguments: argparse.Namespace) -> None:
    """Check any client code against any vLLM (a directory, a wheel, or NAME==VERSION), without importing
    either."""
    cli.end_with_reader()
    started = time.monotonic()
    question = asked(arguments)
    tree = releases.open_vllm(arguments.vllm)
    findings = check_tree(tree, question)
    looked_at = None if arguments.history is None else arguments.history or list(releases.HISTORY)
    if looked_at:
        trees = [releases.open_vllm(place) for place in looked_at]
        findings = history.with_history(findings, tree.version, history.look_back(trees, question))
    subject = {
        "vLLM": f"{tree.version} ({tree.label})",
        "clients": ", ".join(client.label for client in question.clients) or "vLLM's own extraction",
    }
    if question.model:
        subject |= {
            "model": f"{question.model.architecture}, {question.model.num_hidden_layers} layers",
            "layers": str(list(question.asked_layers)),
        }
    result = Findings(findings, subject, time.monotonic() - started)
    report.show(result, "static compatibility")
    write_record(arguments, result.to_json())
    sys.exit(int(result.failed))


def matrix(arguments: argparse.Namespace) -> None:
    """Check clients against several vLLM versions and print a table."""
    cli.end_with_reader()
    question = asked(arguments)
    trees = [releases.open_vllm(place) for place in arguments.vllm or releases.HISTORY]
    cells = history.matrix(question.clients, trees, question)
    print(history.render_matrix(cells))
    write_record(arguments, {"cells": [cell.as_record() for cell in cells]})


def write_record(arguments: argparse.Namespace, record: JsonObject) -> None:
    if arguments.json:
        try:
            write_json(arguments.json, record)
        except OSError as error:
            raise InputError(
                f"--json: {arguments.json} cannot be written; give the name of a file ({headline(error)})"
            ) from error


def asked(arguments: argparse.Namespace) -> Question:
    """The question the command line asks."""
    try:
        engine_arguments = json.loads(arguments.engine_arguments)
    except ValueError as error:
        raise InputError(ENGINE_ARGUMENTS) from error
    if not isinstance(engine_arguments, dict):
        raise InputError(ENGINE_ARGUMENTS)
    layers = arguments.layers and tuple(k + OFFSETS[arguments.layer_convention] for k in arguments.layers)
    return Question(
        clients=tuple(releases.open_client_at(place) for place in arguments.client),
        model=Model.read(Path(arguments.model)) if arguments.model else None,
        layers=layers or None,
        plan=EnginePlan.of(arguments.tensor_parallel, engine_arguments),
        engine_arguments=engine_arguments,
    )


def at_least_one(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {number}")
    return number


def add_question(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--client",
        action="append",
        default=[],
        help=(
            "code that calls vLLM: a directory, file, wheel or NAME==VERSION (default: vLLM's own extraction)"
        ),
    )
    command.add_argument("--model", help="the target's config.json, or the directory that holds it")
    command.add_argument("--layers", type=int, nargs="+", help="layer ids; by default 2, L//2, L-3 and L")
    command.add_argument(
        "--layer-convention",
        choices=sorted(OFFSETS),
        default="vllm",
        help="how --layers counts (default: vllm)",
    )
    command.add_argument(
        "--tensor-parallel", type=at_least_one, default=1, help="devices the model is split over (default: 1)"
    )
    command.add_argument(
        "--engine-arguments",
        default="{}",
        help="further arguments of vLLM as JSON, such as '{\"enable_prefix_caching\": false}'",
    )
    command.add_argument("--json", help="record to write")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for function in (installed, static, matrix):
        command = commands.add_parser(function.__name__, help=function.__doc__, description=function.__doc__)
        command.set_defaults(run=function)
        if function is installed:
            command.add_argument("--config", required=True, help="config file (YAML or JSON)")
            command.add_argument("--target", required=True, help="record of describe_target")
            command.add_argument("--batches", required=True, help="record of tokenize_dataset")
            command.add_argument(
                "--output",
                required=True,
                help=(
                    "report to write (JSON, with an HTML page beside it); NAME.failed.json if the check fails"
                ),
            )
        elif function is static:
            command.add_argument(
                "--vllm",
                required=True,
                help="directory that holds the package vllm, a wheel, or NAME==VERSION",
            )
            command.add_argument(
                "--history",
                nargs="*",
                help=(
                    "also check these releases, to show when each finding appeared (without values: all"
                    " since 0.11)"
                ),
            )
            add_question(command)
        else:
            command.add_argument(
                "--vllm",
                nargs="+",
                help="directories, wheels, or NAME==VERSION (default: the releases since 0.11)",
            )
            add_question(command)
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    try:
        arguments.run(arguments)
    except (ConfigError, InputError) as error:
        if arguments.run is installed:
            raise
        say(headline(error))  # a wrong path or version is a wrong command line, not a finding
        sys.exit(WRONG_USE)


if __name__ == "__main__":
    cli.run(main)
