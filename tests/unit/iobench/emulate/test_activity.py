"""How much I/O is hidden, on a clock that the test sets."""

import pytest

from mlhpc.common.timing.waiting import occupy
from mlhpc.iobench.formats import access


def test_io_time_counts_once_and_hidden_time_is_what_was_not_waited(monkeypatch):
    now = 0.0
    monkeypatch.setattr(access, "clock", lambda: now)
    activity = access.Activity()
    events = [
        (1.0, activity.begin_read),  # one reads from 1 to 4, another from 2 to 6
        (2.0, activity.begin_read),
        (3.0, lambda: activity.waiting(True)),  # the loop waits from 3 to 5
        (4.0, activity.end_read),
        (5.0, lambda: activity.waiting(False)),
        (6.0, activity.end_read),
        (8.0, lambda: activity.waiting(True)),  # and while nobody reads
        (9.0, lambda: activity.waiting(False)),
    ]
    for at, event in events:
        now = at
        event()
    assert activity.reading_s == pytest.approx(5.0)
    assert activity.waited_s == pytest.approx(2.0)


@pytest.mark.parametrize("seconds", [0.0, 1e-5, 3e-4, 2e-3])
def test_a_wait_is_never_shorter_than_asked(seconds):
    assert all(occupy(seconds) >= seconds for _ in range(20))
