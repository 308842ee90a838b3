"""Counts of reads, against counting them one by one."""

import errno
import itertools
import math
import os
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from mlhpc.errors import UserError
from mlhpc.iobench.formats import access, counting
from mlhpc.iobench.formats.access import CountedFile
from mlhpc.iobench.formats.counting import Activity, ReadStatistics, Timeline


def random_reads(random, number):
    """Reads of one thread, in whole milliseconds: begin, end, offset, size, previous end."""
    at, reads = 0, []
    for _ in range(number):
        begin = at + int(random.integers(0, 20))
        at = begin + int(random.integers(0, 30))
        previous = int(random.integers(-1, 9))
        reads.append((begin, at, int(random.integers(0, 9)), int(random.integers(1, 40)), previous))
    return reads


def hand_in(statistics, reads):
    for begin, end, offset, size, previous in reads:
        statistics.add(begin / 1000, end / 1000, offset, size, previous)


@pytest.mark.parametrize("number", [0, 1, 4095, 4096, 10_000])
def test_counts_are_those_of_counting_one_by_one(number):
    reads = random_reads(np.random.default_rng(number), number)
    statistics = ReadStatistics(events=[])
    hand_in(statistics, reads)
    assert (statistics.calls, statistics.bytes) == (number, sum(size for *_, size, _ in reads))
    statistics.settle()
    statistics.settle()  # counts nothing twice
    follow_ups = [(offset, previous) for _, _, offset, _, previous in reads if previous >= 0]
    assert statistics.follow_ups == len(follow_ups)
    assert statistics.sequential == sum(offset >= previous for offset, previous in follow_ups)
    assert statistics.consecutive == sum(offset == previous for offset, previous in follow_ups)
    assert statistics.sizes == Counter(size for *_, size, _ in reads)
    assert statistics.seconds == pytest.approx(sum(end - begin for begin, end, *_ in reads) / 1000)
    assert [(event.start, event.offset, event.size) for event in statistics.events] == [
        (begin / 1000, offset, size) for begin, _, offset, size, _ in reads
    ]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("direct", [False, True])
def test_counts_are_those_of_the_system_calls_one_by_one(tmp_path, monkeypatch, direct, streaming):
    """Samples of many reads, of one and of a part of one, in order and not; some reads are cut short, as on a file
    system that is slow or far away."""
    monkeypatch.setattr(access, "UNSETTLED", 16)
    monkeypatch.setattr(counting, "UNSETTLED", 16)
    random, calls, content = np.random.default_rng(3), [], os.urandom(200_000)
    (tmp_path / "file").write_bytes(content)

    def preadv(fd, buffers, offset):
        (out,) = buffers
        calls.append((offset, len(out)))
        short = not direct and random.random() < 0.1
        return read(fd, [out[: random.integers(1, len(out) + 1)] if short else out], offset)

    # What the kernel is asked for: a direct read goes through a buffer of the file's own.
    read = os.preadv
    monkeypatch.setattr(os, "preadv", preadv)
    monkeypatch.setattr(CountedFile, "_preadv", staticmethod(preadv))
    monkeypatch.setattr(access, "open_regular", lambda path, flags: os.open(path, os.O_RDONLY))  # tmpfs
    statistics = ReadStatistics(events=[])
    file = CountedFile(tmp_path / "file", statistics, transfer=1000, direct=direct, streaming=streaming)
    for length in (40_000, 1000, 300, 25_500, 1, 7000, 60_000) * 3:
        offset = int(random.integers(0, len(content) - length)) if random.random() < 0.5 else 1234
        assert file.read(offset, length).tobytes() == content[offset : offset + length]
        assert (statistics.calls, statistics.bytes) == (len(calls), sum(size for _, size in calls))
    file.close()
    statistics.finish()
    steps = [(at, before + size) for (before, size), (at, _) in itertools.pairwise(calls)]
    assert statistics.follow_ups == len(steps)
    assert statistics.sequential == sum(at >= end for at, end in steps)
    assert statistics.consecutive == sum(at == end for at, end in steps)
    assert statistics.sizes == Counter(size for _, size in calls)
    assert [(event.offset, event.size) for event in statistics.events] == calls
    assert all(event.seconds >= 0 for event in statistics.events)
    assert 0 < statistics.seconds == pytest.approx(statistics.activity.reading_s)


def test_a_read_begins_when_the_one_before_in_its_run_ended(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(2500))
    monkeypatch.setattr(access, "clock", map(float, itertools.count()).__next__)
    statistics = ReadStatistics(events=[])
    file = CountedFile(tmp_path / "file", statistics, transfer=1000)  # opened from 0 to 1
    file.read(0, 2500)
    file.read(0, 1000)
    file.close()
    statistics.finish()
    assert [(event.start, event.seconds) for event in statistics.events] == [(2, 1), (3, 1), (4, 1), (6, 1)]
    assert statistics.seconds == statistics.activity.reading_s == 4


def test_a_read_that_fails_after_others_of_its_run_ends_in_one_line(tmp_path, monkeypatch):
    def preadv(fd, buffers, offset):
        if offset >= 3000:
            raise OSError(errno.EIO, "Input/output error")
        return os.preadv(fd, buffers, offset)

    (tmp_path / "file").write_bytes(bytes(10_000))
    monkeypatch.setattr(CountedFile, "_preadv", staticmethod(preadv))
    statistics = ReadStatistics(events=[])
    file = CountedFile(tmp_path / "file", statistics, transfer=1000)
    file.read(0, 2000)
    with pytest.raises(UserError, match="file cannot be read: Input/output error"):
        file.read(0, 10_000)
    statistics.finish()
    assert statistics.activity.reading_s == pytest.approx(statistics.seconds)


@pytest.mark.parametrize("seed", range(5))
def test_time_of_reading_and_waiting_is_what_a_grid_of_milliseconds_says(seed, monkeypatch):
    """Three threads hand in their reads at different paces, one ends early; the loop waits now and then, and waits
    still when much is summed up."""
    monkeypatch.setattr(counting, "UNSETTLED", 16)
    monkeypatch.setattr(counting, "SPANS_KEPT", 100)
    random = np.random.default_rng(seed)
    all_reads = [random_reads(random, number) for number in (300, 900, 900)]
    edges = np.unique(random.integers(0, 24_000, 40))[:-1]
    now = 0
    monkeypatch.setattr(counting, "clock", lambda: now / 1000)
    activity = Activity()
    activity.waiting(False)
    threads = [ReadStatistics(activity) for _ in all_reads]
    # In the order in which all of it happens.
    todo = [(int(edge), -1, bool(number % 2 == 0)) for number, edge in enumerate(edges)]
    todo += [(read[1], number, read) for number, reads in enumerate(all_reads) for read in reads]
    todo += [(all_reads[0][-1][1] + 1, 0, None)]
    for now, number, what in sorted(todo, key=lambda each: each[0]):  # noqa: B007 the clock reads it
        if number < 0:
            activity.waiting(what)
        elif what is None:
            threads[number].finish()
        else:
            hand_in(threads[number], [what])
    activity.waiting(False)
    for statistics in threads:
        statistics.settle()
    grid = np.zeros(60_000, bool)
    for begin, end, *_ in (read for reads in all_reads for read in reads):
        grid[begin:end] = True
    waits = np.zeros(60_000, bool)
    for since, until in zip(edges[::2], [*edges[1::2], now], strict=False):
        waits[since:until] = True
    assert activity.reading_s == pytest.approx(grid.sum() / 1000)
    assert activity.waited_s == pytest.approx((grid & waits).sum() / 1000)
    assert 0 < activity.waited_s < activity.reading_s


def test_a_thread_that_has_handed_in_nothing_yet_holds_up_no_other(monkeypatch):
    """It waits for one slow file, say, while another reads thousands of times."""
    monkeypatch.setattr(counting, "SPANS_KEPT", 10)
    times = iter([0, 0, 2.25, 4.5])
    monkeypatch.setattr(counting, "clock", lambda: next(times))
    activity = Activity()
    activity.waiting(False)
    fast, slow = activity.enter(), activity.enter()
    activity.waiting(True)
    activity.waiting(False)
    for begin in (10, 30):
        activity.add(fast, np.array([[at, at + 0.5] for at in range(begin, begin + 20)], float))
    activity.add(slow, np.array([[2.0, 4.0]]))
    activity.leave(slow)
    assert activity.reading_s == pytest.approx(2 + 40 * 0.5)
    assert activity.waited_s == pytest.approx(4 - 2.25)


def test_memory_does_not_grow_with_the_number_of_reads(monkeypatch):
    monkeypatch.setattr(counting, "UNSETTLED", 256)
    monkeypatch.setattr(counting, "SPANS_KEPT", 1024)
    activity = Activity()
    threads = [ReadStatistics(activity) for _ in range(2)]
    ReadStatistics(activity).finish()  # a thread for which there was nothing to read

    def read(begin, number):
        for at in range(begin, begin + number):
            for statistics in threads:
                statistics.add(at, at + 0.5, 0, 4096, -1)

    read(0, 2_000)
    tracemalloc.start()
    read(2_000, 20_000)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000  # 40 000 reads
    for statistics in threads:
        statistics.settle()
    assert activity.reading_s == 11_000


@pytest.mark.parametrize("origin", [0.0, 7.0])
def test_a_timeline_has_each_byte_when_it_was_read(origin):
    """Against a millisecond at a time, on a timeline that had to lengthen its intervals, and in another that
    includes it."""
    reads = [read for read in random_reads(np.random.default_rng(4), 3000) if read[1] > read[0]]
    by_ms = np.zeros(10**6)
    for begin, end, _, size, _ in reads:
        by_ms[begin:end] += size / (end - begin)
    line, spans = Timeline(origin), np.array([read[:2] for read in reads]) / 1000
    for part in np.array_split(np.arange(len(reads)), 7):
        line.add(spans[part], np.array([float(reads[n][3]) for n in part]))
    other = Timeline(origin - 1.0)
    other.include(line)
    after = by_ms[round(1000 * origin) :]
    assert line.amounts.sum() == pytest.approx(after.sum())
    assert other.amounts.sum() == pytest.approx(after.sum())
    end = len(reads) and reads[-1][1] / 1000 - origin
    assert line.interval_s * 128 < end <= line.interval_s * 256
    for n in (1, 50, line.used - 3):
        edge = n * line.interval_s
        whole = math.floor(1000 * edge)
        expected = after[:whole].sum() + (1000 * edge - whole) * after[whole]
        assert line.amounts[:n].sum() == pytest.approx(expected, rel=1e-6)


def test_no_interval_of_a_timeline_has_less_than_nothing():
    """Rounding once took 5e-10 bytes away, where the intervals of two timelines end at the same moments."""
    for seed in range(40):
        draw = np.random.default_rng(seed)
        amounts = np.where(draw.random(256) < 0.5, 0.0, draw.uniform(0, 1e6, 256))
        whole = Timeline(0.0)
        whole.include(Timeline(0.0, 2**-6, amounts))
        assert (whole.amounts >= 0).all()
        assert whole.amounts.sum() == pytest.approx(amounts.sum())
