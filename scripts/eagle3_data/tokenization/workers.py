"""Rows to outcomes in several processes, in order, with a bounded number of rows under way."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import chain
from typing import Any

from eagle3_data.errors import Eagle3DataError
from eagle3_data.system.child import die_with_parent
from eagle3_data.tokenization.reading.rows import Outcome, Row

CHUNK_ROWS = 128
CHUNK_CHARACTERS = 1 << 19
CHUNKS_AHEAD = 3
LARGE_CHARACTERS = 8 << 20
"""A row from this size on is always done in another process: one that takes too much memory then ends with a
message."""

SHOWN_ROWS = 3

Tokenize = Callable[[Row], Outcome]


@dataclass
class _Worker:
    """What a worker process has from its parent: the work, and where to note the row that is under way."""

    tokenize: Tokenize
    under_way: Any
    slot: int


_of_this_worker: list[_Worker] = []


def map_rows(tokenize: Tokenize, rows: Iterable[Row], processes: int) -> Iterator[Outcome]:
    """`tokenize` of each row, in order. Few rows are done in this process, since starting others would cost
    more."""
    # libraries and tokenizer: not to be searched for garbage again and again, nor copied into the workers by
    # that
    gc.freeze()
    chunks = _chunks(rows)
    first, second = next(chunks, []), next(chunks, [])
    chunks = chain((first, second), chunks)
    if processes > 1 and second:
        yield from _map_in_processes(tokenize, chunks, processes)
        return
    for chunk in chunks:
        if _characters(chunk) >= LARGE_CHARACTERS:
            yield from _map_in_processes(tokenize, iter([chunk]), 1)
        else:
            yield from map(tokenize, chunk)


def _map_in_processes(tokenize: Tokenize, chunks: Iterator[list[Row]], processes: int) -> Iterator[Outcome]:
    """Forked workers: they share the loaded tokenizer's memory, and start at once instead of importing for
    seconds."""
    chunks_under_way: deque[tuple[list[Row], Future[list[Outcome]]]] = deque()
    context = multiprocessing.get_context("fork")
    # of each worker the source and index of the row that is under way
    rows_under_way, slots = context.RawArray("q", [-1] * (2 * processes)), context.Value("i", 0)
    pool = ProcessPoolExecutor(
        processes,
        mp_context=context,
        initializer=_start_worker,
        initargs=(tokenize, rows_under_way, slots, os.getpid()),
    )
    try:
        for chunk in chunks:
            chunks_under_way.append((chunk, pool.submit(_work, chunk)))
            if len(chunks_under_way) > processes * CHUNKS_AHEAD:
                yield from _result(chunks_under_way)
        while chunks_under_way:
            yield from _result(chunks_under_way)
    except Eagle3DataError as error:
        raise error from None  # not from the other process's traceback: the message says all
    except BrokenProcessPool as error:
        rows = [row for chunk, _ in chunks_under_way for row in chunk]
        suspects = _suspects(rows, rows_under_way)
        raise Eagle3DataError(
            f"a tokenizing process was killed, probably out of memory; {suspects}; give the rule more memory"
            " or fewer --processes, or remove rows that are too large"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _result(chunks_under_way: deque[tuple[list[Row], Future[list[Outcome]]]]) -> list[Outcome]:
    """The outcomes of the oldest chunk, which stays pending if they are not available yet."""
    outcomes = chunks_under_way[0][1].result()
    chunks_under_way.popleft()
    return outcomes


def _suspects(rows: list[Row], under_way: Any) -> str:
    """The rows that the workers were tokenizing, the largest first."""
    numbers = set(zip(under_way[::2], under_way[1::2], strict=True))
    found = [row for row in rows if (row.source, row.index) in numbers]
    found.sort(key=lambda row: len(row.text or ""), reverse=True)
    shown = (
        f"data.sources[{row.source}], {row.place}" + (f" ({len(row.text):,} characters)" if row.text else "")
        for row in found[:SHOWN_ROWS]
    )
    return "being tokenized: " + "; ".join(shown) if found else "no row was being tokenized"


def _start_worker(tokenize: Tokenize, under_way: Any, slots: Any, parent: int) -> None:
    """Leave Ctrl-C to the parent, and die with it even if it is killed."""
    with slots:
        slot, slots.value = slots.value, slots.value + 1
    _of_this_worker.append(_Worker(tokenize, under_way, 2 * slot))  # came by forking, not by pickling
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)


def _work(chunk: list[Row]) -> list[Outcome]:
    worker = _of_this_worker[-1]
    outcomes = []
    for row in chunk:
        worker.under_way[worker.slot : worker.slot + 2] = [row.source, row.index]
        outcomes.append(worker.tokenize(row))
    return outcomes


def _characters(chunk: list[Row]) -> int:
    return sum(len(row.text or "") for row in chunk)


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    chunk: list[Row] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += len(row.text or "")
        if len(chunk) == CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk
