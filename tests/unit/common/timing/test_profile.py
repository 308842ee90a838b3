"""What a profile says of messages and input."""

import pytest

from mlhpc.common.timing.profile import Exchange, Feed, Message, by_size


def test_messages_are_counted_by_size():
    sent = [(100, 0.2), (300, 0.5), (100, 0.4)] * 2
    assert by_size(sent, 2) == (Message(100, pytest.approx(0.3), 2), Message(300, 0.5, 1))


def test_bytes_and_rate_are_those_of_a_step():
    exchange = Exchange((Message(100, 0.25, 2), Message(300, 0.5, 1)), 0.1)
    assert exchange.bytes == 500
    assert exchange.rate == pytest.approx(500)  # one second of messages


def test_a_message_without_a_time_leaves_the_rate_open():
    assert Exchange((Message(100, None, 1),), None).rate is None
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


def test_samples_in_memory_read_nothing():
    feed = Feed(lambda epoch: iter(range(3)))
    feed.start()
    assert feed.next() == 0
    assert feed.reading(1) is None
