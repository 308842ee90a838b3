"""How many files are copied at once, on simulated disks with a simulated clock."""

import threading
from collections.abc import Callable

import pytest

from mlhpc.common.staging.streams import Streams

MB = 10**6


def history(rate: Callable[[int], float], most: int, files: int = 4000) -> list[int]:
    """The number of streams during each file of a long copy from storage that delivers ``rate(streams)`` bytes per
    second."""
    now = [0.0]
    streams = Streams(most, clock=lambda: now[0])
    numbers = []
    for _ in range(files):
        numbers.append(streams.allowed)
        now[0] += 16 * MB / rate(streams.allowed)
        streams.done(16 * MB)
    return numbers


@pytest.mark.parametrize(
    ("name", "rate", "best"),
    [
        ("one stream is fastest", lambda n: 1000 * MB / n**0.5, {1}),
        ("one stream fills it", lambda n: 1900 * MB, {1, 2}),
        ("two streams fill it", lambda n: 1000 * MB * min(n, 2), {2}),
        ("a parallel file system", lambda n: 500 * MB * n, {16}),
        ("eight streams fill it", lambda n: 500 * MB * min(n, 8), {8}),
    ],
)
def test_the_number_of_streams_is_that_of_the_storage(
    name: str, rate: Callable[[int], float], best: set[int]
) -> None:
    numbers = history(rate, most=16)
    assert max(map(numbers.count, best)) > 0.8 * len(numbers), (name, numbers[:200:10])


def test_the_search_takes_little_of_a_short_copy() -> None:
    """A gigabyte from a disk that eight streams fill, in a quarter of a second at best."""

    def rate(n: int) -> float:
        return 500 * MB * min(n, 8)

    numbers = history(rate, most=8, files=64)
    seconds = sum(16 * MB / rate(n) for n in numbers)
    assert seconds < 64 * 16 * MB / rate(8) / 0.8


def test_it_is_never_more_than_asked_for() -> None:
    assert set(history(lambda n: 500 * MB * n, most=3)) <= {1, 2, 3}
    assert set(history(lambda n: 500 * MB * n, most=1)) == {1}


def test_another_number_is_tried_when_the_storage_changes() -> None:
    served = [0]

    def rate(n: int) -> float:
        served[0] += 1
        return 1000 * MB * min(n, 2 if served[0] < 2000 else 8)

    assert history(rate, most=16, files=8000)[-1] == 8


def test_waiting_threads_are_released_at_the_end() -> None:
    streams = Streams(8)
    turns: list[bool] = []
    waiting = [threading.Thread(target=lambda n=n: turns.append(streams.wait_for_turn(n))) for n in (4, 5)]
    for thread in waiting:
        thread.start()
    assert streams.wait_for_turn(0) and not turns
    streams.close()
    for thread in waiting:
        thread.join(30)
    assert turns == [False, False]
