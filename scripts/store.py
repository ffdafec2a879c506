#!/usr/bin/env python3
"""Manage the store of hidden states: list its contents, verify every byte, delete what no run refers to."""

import argparse
import contextlib
from collections import Counter
from pathlib import Path

from eagle3_data import cli
from eagle3_data.dtypes import SAME, stored_dtype
from eagle3_data.errors import InputError, SampleError, StorageError, message_of
from eagle3_data.extraction.store_care import (
    Summary,
    find_garbage,
    find_runs,
    open_stores,
    quarantine,
    refuse_while_running,
    summarize,
    verify,
)
from eagle3_data.log import say
from eagle3_data.text import counted, table

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
NUMBERS = range(COLUMNS.index("samples"), len(COLUMNS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--store", type=Path, default=Path("results/store"))
    common.add_argument("--extraction-id", help="by default all of them")
    commands = parser.add_subparsers(required=True, dest="command")
    listing = commands.add_parser("list", parents=[common], help="one line for each extraction id")
    listing.add_argument("--tokens", action="store_true", help="also count tokens (reads every sidecar)")
    checking = commands.add_parser(
        "verify",
        parents=[common],
        help="check size and checksum of every sample; exits 1 if any is damaged",
    )
    checking.add_argument("--threads", type=int, default=4)
    checking.add_argument(
        "--quarantine",
        action="store_true",
        help="move damaged samples out of the store, so that the next run extracts them again",
    )
    cleaning = commands.add_parser(
        "gc", parents=[common], help="list what no run refers to, and what killed writers left behind"
    )
    cleaning.add_argument(
        "--results",
        type=Path,
        nargs="+",
        default=[Path("results")],
        help="every directory with runs that use this store (default: results)",
    )
    cleaning.add_argument(
        "--delete", action="store_true", help="delete what is listed; without this option, nothing is deleted"
    )
    cleaning.add_argument(
        "--quarantine-days", type=float, default=7.0, help="how long quarantined samples are kept"
    )
    arguments = parser.parse_args()
    {"list": list_stores, "verify": verify_stores, "gc": collect_garbage}[arguments.command](arguments)


def list_stores(arguments: argparse.Namespace) -> None:
    cli.end_with_reader()
    rows: list[tuple[str, ...]] = [COLUMNS]
    unreadable = 0
    for store in open_stores(arguments.store, arguments.extraction_id):
        try:
            rows.append(row_of(summarize(store, count_tokens=arguments.tokens)))
        except (StorageError, InputError) as error:
            unreadable += 1
            say(message_of(error))
    print(table(rows, NUMBERS))
    if unreadable:
        raise StorageError(
            f"{counted(unreadable, 'extraction id')} of {arguments.store} cannot be read; see above"
        )


def row_of(summary: Summary) -> tuple[str, ...]:
    identity = summary.identity
    return (
        summary.extraction_id,
        str(identity.get("fingerprint", "?"))[:8],
        " ".join(map(str, identity.get("layers", "?"))),
        stored_dtype(str(identity.get("dtype", "?")), str(identity.get("storage_dtype", SAME))),
        str(identity.get("engine", "?")).split(":")[-1],
        f"{summary.samples:,}",
        "" if summary.tokens is None else f"{summary.tokens:,}",
        f"{summary.size_bytes / 1e9:,.3f}",
        f"{summary.quarantined:,}",
        f"{summary.orphan_sidecars:,}",
    )


def verify_stores(arguments: argparse.Namespace) -> None:
    damaged = unknown = 0
    for store in open_stores(arguments.store, arguments.extraction_id):
        try:
            for fault in verify(store, arguments.threads):
                print(f"{store.states_path(fault.key)}: {fault.text}", flush=True)
                damaged += fault.is_damage
                unknown += not fault.is_damage
                if arguments.quarantine and fault.is_damage:
                    quarantine(store, fault)
        except StorageError as error:
            unknown += 1
            say(message_of(error))
    if damaged:
        remedy = (
            "quarantined, and extracted again by the next run"
            if arguments.quarantine
            else "`verify --quarantine` takes them out of the store"
        )
        raise SampleError(f"{counted(damaged, 'damaged sample')} in {arguments.store}; {remedy}")
    if unknown:
        raise StorageError(
            f"not all of {arguments.store} can be read, see above; have its owner call"
            f" `chmod -R g+rX {arguments.store}`, or verify it as its owner"
        )


def collect_garbage(arguments: argparse.Namespace) -> None:
    items: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for store in open_stores(arguments.store, arguments.extraction_id):
        with store.without_users() if arguments.delete else contextlib.nullcontext():
            # read under the lock: what a run that has just ended refers to is in its records by now
            runs = find_runs(arguments.results)
            if arguments.delete:
                refuse_while_running(runs, store)
            for garbage in find_garbage(store, runs, arguments.quarantine_days):
                items[garbage.reason] += 1
                sizes[garbage.reason] += garbage.size_bytes
                print(f"{garbage.paths[0]}: {garbage.reason}")
                if arguments.delete:
                    garbage.delete()
    for reason, count in items.items():
        say(f"{count:,} x {reason}, {sizes[reason] / 1e9:,.3f} GB")
    say(
        "deleted"
        if arguments.delete
        else "nothing is deleted; add --delete to delete it"
        if items
        else "there is nothing to delete"
    )


if __name__ == "__main__":
    cli.run(main)
