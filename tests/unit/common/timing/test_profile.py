"""Messages and input in a profile."""

import random

import pytest

from mlhpc.common.timing.profile import Exchange, Feed, Message, Profile, Reading, Work, by_size, covered


def test_messages_are_counted_by_size():
    sent = [(100, 0.2), (300, 0.5), (100, 0.4)] * 2
    assert by_size(sent, 2) == (Message(100, pytest.approx(0.3), 2), Message(300, 0.5, 1))


def test_bytes_and_rate_are_those_of_a_step():
    """Messages of a second in all, of which two were under way at once for half of it."""
    exchange = Exchange((Message(100, 0.25, 2), Message(300, 0.5, 1)), 0.1, 0.5)
    assert exchange.bytes == 500
    assert exchange.rate == pytest.approx(1000)


def test_time_that_intervals_share_counts_once():
    assert covered([(0.0, 1.0), (0.5, 2.0), (0.6, 0.7), (3.0, 3.5)]) == pytest.approx(2.5)
    assert covered([]) == 0
    draw = random.Random(1)
    for _ in range(50):
        intervals = [(begin, begin + draw.randrange(20)) for begin in draw.choices(range(60), k=8)]
        seconds = {second for begin, end in intervals for second in range(begin, end)}
        assert covered(intervals) == len(seconds)


def test_a_message_without_a_time_leaves_the_rate_open():
    assert Exchange((Message(100, None, 1),), None, None).rate is None
    assert by_size([(8, 0.1), (8, None)], 1) == (Message(8, None, 2),)


class Loader:
    """Ten batches an epoch, 7 bytes each."""

    def __init__(self):
        self.bytes_read = 0
        self.epochs = []

    def train_epoch(self, epoch):
        self.epochs.append(epoch)
        for batch in range(10):
            self.bytes_read += 7
            yield batch


def test_the_warm_up_is_not_counted():
    loader = Loader()
    feed = Feed(loader.train_epoch, lambda: loader.bytes_read)
    feed.next()
    feed.start()
    assert [feed.next(), feed.next()] == [1, 2]
    reading = feed.reading(2)
    assert reading.bytes == 7
    assert reading.waited >= 0
    assert loader.epochs == [0, 1]  # alone, it reads in another order


def test_a_step_of_several_backward_passes_reads_a_batch_for_each():
    loader = Loader()
    feed = Feed(loader.train_epoch, lambda: loader.bytes_read)
    feed.start()
    for _ in range(2 * 3):
        feed.next()
    assert feed.reading(2, 3).bytes == 3 * 7


def test_on_a_gpu_the_hosts_wait_is_at_most_the_time_without_kernels():
    """The host waits 0.6 s for a batch while kernels that it had queued run for 0.7 s of a step of 1 s."""
    profiles = {
        gpu: Profile(
            "x", 1, 1, 1.0, (), (Work("forward", "", "k", 0.7, 1),), reading=Reading(0.6, 1, 1), gpu=gpu
        )
        for gpu in (False, True)
    }
    assert (profiles[True].input_wait, profiles[True].wait) == (pytest.approx(0.3), pytest.approx(0.0))
    assert profiles[False].input_wait == 0.6


def test_samples_in_memory_read_nothing():
    feed = Feed(lambda epoch: iter(range(3)))
    feed.start()
    assert feed.next() == 0
    assert feed.reading(1) is None
