"""Training order, split and batches."""

import random

import numpy as np
import pyarrow.parquet as pq
import pytest

from eagle3_data.hashing import hash_json, sample_key
from eagle3_data.records.batch_index import BatchEntry
from eagle3_data.tokenization.batches import BatchWriter
from eagle3_data.tokenization.placement import (
    TRAIN,
    VALIDATION,
    PlacedSample,
    Spool,
    choose_validation,
    equal_batches,
    full_batches,
    trainer_ratio,
)
from eagle3_data.tokenization.reading.rows import Sample


def placed(conversation, tokens, turn=0, first=0):
    """A sample of consecutive ids of which every second is trained."""
    ids = np.arange(first, first + tokens, dtype="<i4")
    mask = bytes(number % 2 for number in range(tokens))
    sample = Sample(f":{turn}", sample_key(ids.tolist()), ids.tobytes(), mask)
    return PlacedSample(f"talks:{conversation}:{turn}", f"talks:{conversation}", TRAIN, sample)


def write(path, samples, starts_batch):
    writer = BatchWriter(path, starts_batch, vocab_size=1000)
    for sample in samples:
        writer.add(sample)
    writer.close()
    return writer


def test_batches_are_row_groups_with_their_sizes(tmp_path):
    samples = [placed(number, tokens) for number, tokens in enumerate([40, 40, 40, 90, 200, 10])]
    writer = write(tmp_path / "samples.parquet", samples, full_batches(100))
    file = pq.ParquetFile(tmp_path / "samples.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [
        2,
        1,
        1,
        1,
        1,
    ]
    assert list(writer.batches) == ["00000", "00001", "00002", "00003", "00004"]
    assert writer.batches["00000"] == BatchEntry(
        row_group=0,
        samples=2,
        tokens=80,
        longest=40,
        fingerprint=hash_json([[sample.sample_id, sample.sample.key] for sample in samples[:2]]),
    )
    assert writer.totals() == {"samples": 6, "tokens": 420, "trained_tokens": 210, "longest": 200}
    rows = file.read().to_pylist()
    assert rows[3]["input_ids"] == list(range(90))
    assert rows[3]["loss_mask"] == [0, 1] * 45
    assert (rows[3]["tokens"], rows[3]["trained_tokens"], rows[3]["key"]) == (90, 45, sample_key(range(90)))


def test_trained_tokens_are_counted_by_id(tmp_path):
    writer = write(tmp_path / "samples.parquet", [placed(0, 4), placed(1, 4, first=2)], full_batches(4))
    assert np.flatnonzero(writer.frequencies).tolist() == [1, 3, 5]
    assert writer.frequencies[3] == 2


def test_appended_samples_change_only_the_last_batch(tmp_path):
    samples = [placed(number, 7 + number % 30) for number in range(200)]
    before, after = (
        write(tmp_path / f"{count}.parquet", samples[:count], full_batches(300)).batches
        for count in (150, 200)
    )
    assert list(before.items())[:-1] == list(after.items())[: len(before) - 1]


@pytest.mark.parametrize("number", [1, 3, 7, 50, 300])
def test_a_given_number_of_batches_is_balanced(number, tmp_path):
    random.seed(5)
    samples = [placed(index, random.randint(2, 60)) for index in range(300)]
    total = sum(sample.sample.tokens for sample in samples)
    writer = write(tmp_path / "samples.parquet", samples, equal_batches(number, total))
    sizes = [batch.tokens for batch in writer.batches.values()]
    assert sum(sizes) == total
    assert len(sizes) == number if number <= 50 else len(sizes) <= number
    assert max(sizes) <= total / number + 60


def test_more_batches_than_samples_gives_one_each(tmp_path):
    assert (
        len(
            write(
                tmp_path / "samples.parquet", [placed(0, 5), placed(1, 500)], equal_batches(10, 505)
            ).batches
        )
        == 2
    )


def random_rows(count, most):
    random.seed(count)
    hashes = np.array([random.getrandbits(64) for _ in range(count)], np.uint64)
    return hashes, np.array([random.randint(1, most) for _ in range(count)], np.int64)


@pytest.mark.parametrize("ratio", [0.5, 0.9, 0.93, 0.99])
@pytest.mark.parametrize("most", [1, 4])
def test_the_trainer_s_cut_falls_between_train_and_validation(ratio, most):
    for count in (20, 101, 1000):
        hashes, rows = random_rows(count, most)
        held_out = choose_validation(hashes, rows, ratio)
        train = int(rows[~held_out].sum())
        assert train == int(int(rows.sum()) * ratio)
        assert trainer_ratio(train, int(rows.sum()), ratio) == ratio


def test_where_no_conversation_fits_a_ratio_is_given_that_does():
    hashes, rows = random_rows(10, 1)
    rows[:] = 7
    held_out = choose_validation(hashes, rows, 0.85)  # 10.5 of 70 rows: one conversation of 7 fits
    assert held_out.sum() == 1
    assert int(70 * trainer_ratio(63, 70, 0.85)) == 63


def test_somebody_is_always_trained_on():
    assert choose_validation(np.array([3], np.uint64), np.array([1]), 0.5).tolist() == [False]
    assert trainer_ratio(5, 5, 0.9) == 1.0


def test_a_conversation_stays_on_its_side_when_others_come():
    hashes, rows = random_rows(1000, 1)
    before, after = choose_validation(hashes[:900], rows[:900], 0.9), choose_validation(hashes, rows, 0.9)
    moved = int((before != after[:900]).sum())
    assert moved <= 30  # of 90: the threshold hash moves a little


def test_the_spool_gives_back_what_it_got_in_training_order(tmp_path):
    samples = [
        placed(conversation, 5 + turn, turn)
        for conversation in range(400)
        for turn in range(1 + conversation % 3)
    ]
    spool = Spool(tmp_path / "spool.arrow")
    for sample in samples:
        spool.add(sample)
    assert spool.tokens == sum(sample.sample.tokens for sample in samples)
    ordered = list(spool.ordered(0.9))
    train = [sample for sample in ordered if sample.split == TRAIN]
    assert ordered[: len(train)] == train
    assert len(train) == int(len(samples) * 0.9)
    assert {sample.conversation_id for sample in train}.isdisjoint(
        sample.conversation_id for sample in ordered[len(train) :]
    )
    assert sorted(sample.sample_id for sample in ordered) == sorted(sample.sample_id for sample in samples)
    positions = {sample.sample_id: number for number, sample in enumerate(samples)}
    for side in (TRAIN, VALIDATION):
        order = [positions[sample.sample_id] for sample in ordered if sample.split == side]
        assert order == sorted(order)
    assert {sample.sample_id: sample.sample for sample in ordered} == {
        sample.sample_id: sample.sample for sample in samples
    }
