"""Batches read ahead: in order, within the limit, and no longer once the iterator is closed."""

import threading

import pytest

from mlhpc.common.data.prefetch import read_batches


def reading(batches, read, workers=2, prefetch=2):
    return read_batches(
        batches,
        allocate=lambda samples: ([None] * samples, ((row,) for row in range(samples))),
        read=read,
        finish=lambda arrays, results: results,
        workers=workers,
        prefetch=prefetch,
    )


def test_batches_are_in_order_for_any_order_of_reading():
    last = threading.Event()

    def read(key, row):
        if key == 0:
            assert last.wait(30)  # the first sample is the last to be read
        if key == 5:
            last.set()
        return key, row

    assert list(reading([[0, 1], [2], [3, 4, 5]], read, workers=4)) == [
        [(0, 0), (1, 1)],
        [(2, 0)],
        [(3, 0), (4, 1), (5, 2)],
    ]


def test_read_ahead_is_limited_to_prefetch():
    begun = []

    def batches():
        for number in range(10):
            begun.append(number)
            yield [number]

    source = reading(batches(), lambda key, row: key, prefetch=3)
    assert next(source) == [0] and begun == [0, 1, 2, 3]
    assert next(source) == [1] and begun == [0, 1, 2, 3, 4]
    source.close()


def test_an_error_is_raised_with_its_batch_and_ends_the_readers():
    def read(key, row):
        if key == 2:
            raise ValueError("sample 2")
        return key

    source = reading([[0], [1], [2], [3]], read)
    assert [next(source), next(source)] == [[0], [1]]
    with pytest.raises(ValueError, match="sample 2"):
        next(source)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("reader")]
