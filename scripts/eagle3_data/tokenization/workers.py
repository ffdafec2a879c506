"""Rows to outcomes in several processes, in order, with a bounded number of rows under way."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain

from eagle3_data.errors import Eagle3DataError
from eagle3_data.tokenization.reading.rows import Outcome, Row

CHUNK_ROWS = 128
CHUNK_CHARACTERS = 1 << 19
CHUNKS_AHEAD = 3
PR_SET_PDEATHSIG = 1
"""From <sys/prctl.h>."""

Tokenize = Callable[[Row], Outcome]
_of_this_worker: list[Tokenize] = []


def map_rows(tokenize: Tokenize, rows: Iterable[Row], processes: int) -> Iterator[Outcome]:
    """`tokenize` of each row, in order. Few rows are done in this process, since starting others would cost
    more."""
    # libraries and tokenizer: not to be searched for garbage again and again, nor copied into the workers by
    # that
    gc.freeze()
    chunks = _chunks(rows)
    first, second = next(chunks, []), next(chunks, [])
    chunks = chain((first, second), chunks)
    if processes == 1 or not second:
        for chunk in chunks:
            yield from map(tokenize, chunk)
    else:
        yield from _map_in_processes(tokenize, chunks, processes)


def _map_in_processes(tokenize: Tokenize, chunks: Iterator[list[Row]], processes: int) -> Iterator[Outcome]:
    """Forked workers: they share the loaded tokenizer's memory, and start at once instead of importing for
    seconds."""
    under_way: deque[Future[list[Outcome]]] = deque()
    pool = ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_start_worker,
        initargs=(tokenize,),
    )
    try:
        for chunk in chunks:
            under_way.append(pool.submit(_work, chunk))
            if len(under_way) > processes * CHUNKS_AHEAD:
                yield from under_way.popleft().result()
        while under_way:
            yield from under_way.popleft().result()
    except Eagle3DataError as error:
        raise error from None  # not from the other process's traceback: the message says all
    except BrokenProcessPool as error:
        raise Eagle3DataError(
            "a tokenizing process was killed, mostly for want of memory; give the rule more memory, or fewer"
            " --processes"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker(tokenize: Tokenize) -> None:
    """Leave Ctrl-C to the parent, and die with it even if it is killed."""
    _of_this_worker.append(tokenize)  # came by forking, not by pickling
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _work(chunk: list[Row]) -> list[Outcome]:
    return [_of_this_worker[0](row) for row in chunk]


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
