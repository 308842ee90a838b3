"""How much I/O is hidden, on a clock that the test sets."""

import numpy as np
import pytest

from mlhpc.common.timing.waiting import occupy
from mlhpc.iobench.formats import counting


def test_io_time_counts_once_and_hidden_time_is_what_was_not_waited(monkeypatch):
    times = iter([0.0, 1.5, 3.0, 5.0, 8.0, 9.0])
    monkeypatch.setattr(counting, "clock", lambda: next(times))
    activity = counting.Activity()
    for waiting in (
        False,
        True,
        False,
        True,
        False,
    ):  # until 1.5, from 3 to 5, from 8 to 9 while nobody reads
        activity.waiting(waiting)
    one, other = activity.enter(), activity.enter()
    activity.add(one, np.array([[1.0, 4.0]]))  # one thread reads from 1 to 4
    activity.add(other, np.array([[2.0, 3.0], [3.5, 6.0]]))  # another from 2 to 3 and from 3.5 to 6
    assert activity.reading_s == pytest.approx(5.0)
    assert activity.waited_s == pytest.approx(2.5)


def test_reads_at_random_times_cover_what_a_fine_grid_says():
    random = np.random.default_rng(1)
    begins = random.integers(0, 10_000, 300)
    spans = np.stack([begins, begins + random.integers(1, 40, 300)], 1)
    grid = np.zeros(11_000, bool)
    for begin, end in spans:
        grid[begin:end] = True
    begins, ends = counting.union(spans.astype(float)).T
    assert (ends - begins).sum() == grid.sum()
    assert (begins[1:] > ends[:-1]).all()
    assert len(counting.union(np.empty((0, 2)))) == 0


@pytest.mark.parametrize("seconds", [0.0, 1e-5, 3e-4, 2e-3])
def test_a_wait_is_never_shorter_than_asked(seconds):
    assert all(occupy(seconds) >= seconds for _ in range(20))
