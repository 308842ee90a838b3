"""Times of DistributedDataParallel's buckets."""

import pytest

from mlhpc.common.pytorch.profile import BucketTimes, _Bucket


def test_buckets_that_overlap_count_their_shared_time_once():
    """Two steps of two buckets, of which the second is sent while the first is under way; with nothing left to
    compute from the last one's beginning."""
    times = BucketTimes(2, on_host=True)
    for start in (10.0, 20.0):
        times.buckets += [_Bucket(100, start, start + 1.0), _Bucket(60, start + 0.5, start + 1.5)]
    exchange = times.exchange(2)
    assert exchange.bytes == 160
    assert exchange.under_way == pytest.approx(1.5)
    assert exchange.rate == pytest.approx(160 / 1.5)
    assert exchange.exposed == pytest.approx(1.0)


def test_on_a_gpu_only_sizes_are_known():
    times = BucketTimes(2, on_host=False)
    times.buckets.append(_Bucket(100, 0.0))
    exchange = times.exchange(1)
    assert (exchange.exposed, exchange.under_way, exchange.rate, exchange.bytes) == (None, None, None, 100)
