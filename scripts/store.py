#!/usr/bin/env python3
"""Look after the store of hidden states: list what is in it, verify every byte, find and delete what no run
refers to."""

import argparse
from collections import Counter
from pathlib import Path

from eagle3_data import cli
from eagle3_data.errors import SampleError
from eagle3_data.extraction.store_care import (
    Summary,
    find_garbage,
    find_runs,
    open_stores,
    refuse_while_running,
    summarize,
    verify,
)

COLUMNS = (
    "extraction id",
    "target",
    "layers",
    "dtype",
    "engine",
    "samples",
    "tokens",
    "GB",
    "quarantined",
    "orphan sidecars",
)
NUMBERS = COLUMNS.index("samples")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--store", type=Path, default=Path("results/store"))
    common.add_argument("--extraction-id", help="by default all of them")
    commands = parser.add_subparsers(required=True, dest="command")
    listing = commands.add_parser("list", parents=[common], help="one line an extraction id")
    listing.add_argument("--tokens", action="store_true", help="count tokens, too: reads every sidecar")
    checking = commands.add_parser(
        "verify",
        parents=[common],
        help="size and checksum of every sample; exits 1 if one is not what was written",
    )
    checking.add_argument("--threads", type=int, default=4)
    checking.add_argument(
        "--quarantine",
        action="store_true",
        help="take bad samples out of the store, so that the next run extracts them anew",
    )
    cleaning = commands.add_parser(
        "gc", parents=[common], help="list what no run refers to, and leftovers of killed writers"
    )
    cleaning.add_argument(
        "--results",
        type=Path,
        nargs="+",
        default=[Path("results")],
        help="every directory with runs that use this store (default: results)",
    )
    cleaning.add_argument(
        "--delete", action="store_true", help="delete it; without this option it is only listed"
    )
    cleaning.add_argument(
        "--quarantine-days", type=float, default=7.0, help="how long quarantined samples are kept"
    )
    arguments = parser.parse_args()
    {"list": list_stores, "verify": verify_stores, "gc": collect_garbage}[arguments.command](arguments)


def list_stores(arguments: argparse.Namespace) -> None:
    stores = open_stores(arguments.store, arguments.extraction_id)
    rows = [COLUMNS, *(row_of(summarize(store, count_tokens=arguments.tokens)) for store in stores)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print(
            "  ".join(
                cell.rjust(width) if n >= NUMBERS else cell.ljust(width)
                for n, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
        )


def row_of(summary: Summary) -> tuple[str, ...]:
    identity = summary.identity
    return (
        summary.extraction_id,
        identity["fingerprint"][:8],
        " ".join(map(str, identity["layers"])),
        identity["dtype"],
        identity["engine"].split(":")[-1],
        f"{summary.samples:,}",
        "" if summary.tokens is None else f"{summary.tokens:,}",
        f"{summary.size_bytes / 1e9:,.3f}",
        f"{summary.quarantined:,}",
        f"{summary.orphan_sidecars:,}",
    )


def verify_stores(arguments: argparse.Namespace) -> None:
    bad = 0
    for store in open_stores(arguments.store, arguments.extraction_id):
        for key, fault in verify(store, arguments.threads):
            bad += 1
            print(f"{store.states_path(key)}: {fault}", flush=True)
            if arguments.quarantine:
                store.quarantine(key, fault)
    if bad:
        told = (
            "they are quarantined, the next run extracts them anew"
            if arguments.quarantine
            else "`verify --quarantine` takes them out of the store"
        )
        raise SampleError(f"{bad} samples of {arguments.store} are not what was written; {told}")


def collect_garbage(arguments: argparse.Namespace) -> None:
    stores = open_stores(arguments.store, arguments.extraction_id)
    runs = find_runs(arguments.results)
    if arguments.delete:
        refuse_while_running(runs, stores)
    items: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for store in stores:
        for garbage in find_garbage(store, runs, arguments.quarantine_days):
            items[garbage.reason] += 1
            sizes[garbage.reason] += garbage.size_bytes
            print(f"{garbage.paths[0]}: {garbage.reason}")
            if arguments.delete:
                garbage.delete()
    for reason, count in items.items():
        cli.say(f"{count:,} x {reason}, {sizes[reason] / 1e9:,.3f} GB")
    cli.say(
        "deleted"
        if arguments.delete
        else "nothing is deleted; --delete does it"
        if items
        else "there is nothing to delete"
    )


if __name__ == "__main__":
    cli.run(main)
