"""Several processes give what one gives."""

import os
import signal
import time

import psutil
import pytest

from eagle3_data.errors import Eagle3DataError, InputError
from eagle3_data.tokenization.reading.rows import Outcome, Row
from eagle3_data.tokenization.workers import CHUNK_ROWS, CHUNKS_AHEAD, LARGE_CHARACTERS, map_rows


def rows(count):
    return (Row(0, index, f"row {index}", text=f"{index}") for index in range(count))


def by_process(row):
    return Outcome(0, row.index, str(os.getpid()))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_outcomes_come_in_order(processes):
    outcomes = list(map_rows(by_process, rows(1000), processes))
    assert [outcome.index for outcome in outcomes] == list(range(1000))
    assert (str(os.getpid()) in {outcome.file_id for outcome in outcomes}) == (processes == 1)


def test_few_rows_start_no_process():
    assert {outcome.file_id for outcome in map_rows(by_process, rows(CHUNK_ROWS), 4)} == {str(os.getpid())}
    assert list(map_rows(by_process, rows(0), 4)) == []


def test_rows_are_read_only_so_far_ahead():
    read = 0

    def counted():
        nonlocal read
        for row in rows(10**6):
            read += 1
            yield row

    before = set(psutil.Process().children())
    outcomes = map_rows(by_process, counted(), 2)
    next(outcomes)
    assert read <= (2 * CHUNKS_AHEAD + 3) * CHUNK_ROWS
    outcomes.close()
    assert set(psutil.Process().children()) <= before


def test_an_error_of_a_worker_arrives_and_ends_all(tmp_path):
    def fails(row):
        if row.index == 300:
            raise InputError("no chat template")
        return by_process(row)

    before = set(psutil.Process().children())
    with pytest.raises(InputError, match="no chat template"):
        list(map_rows(fails, rows(1000), 2))
    assert set(psutil.Process().children()) <= before


def test_a_killed_worker_is_reported():
    def dies(row):
        if row.index == 300:
            os.kill(os.getpid(), signal.SIGKILL)
        return by_process(row)

    with pytest.raises(Eagle3DataError, match="was killed, probably out of memory") as caught:
        list(map_rows(dies, rows(1000), 2))
    assert "data.sources[0], row 300 (3 characters)" in str(caught.value)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_large_row_that_ends_its_process_is_named_even_if_it_is_the_only_one(processes):
    def dies(row):
        os.kill(os.getpid(), signal.SIGKILL)

    large = Row(0, 7, "line 8", text="x" * LARGE_CHARACTERS)
    with pytest.raises(
        Eagle3DataError, match=r"being tokenized: data\.sources\[0\], line 8 \(8,388,608 characters\)"
    ):
        list(map_rows(dies, [large], processes))


def test_large_rows_keep_their_place():
    between = [Row(0, 1, "line 2", text="x" * LARGE_CHARACTERS)]
    outcomes = list(
        map_rows(by_process, [*rows(1), *between, *(Row(0, i, "", text="") for i in range(2, 300))], 1)
    )
    assert [outcome.index for outcome in outcomes] == list(range(300))
    assert outcomes[1].file_id != outcomes[299].file_id == str(os.getpid())


def test_workers_die_with_their_parent():
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:  # a process of its own, to be killed
        try:
            outcomes = map_rows(by_process, rows(10**6), 2)
            os.write(writer, f"{next(outcomes).file_id}\n".encode())
            time.sleep(60)
        finally:
            os._exit(1)  # never on into the tests that follow
    os.close(writer)  # a child that ends without a word ends the wait for one
    worker = psutil.Process(int(os.read(reader, 20)))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    gone, alive = psutil.wait_procs([worker], timeout=10)
    assert gone and not alive
