"""The trace of runs made up by hand, as Perfetto reads it: partly overlapping events of a thread are dropped."""

import json
from collections import defaultdict

import numpy as np

from mlhpc.iobench.emulate.checkpoints import Transfer
from mlhpc.iobench.emulate.record import Run
from mlhpc.iobench.emulate.steps import COLUMNS, EpochTimes
from mlhpc.iobench.formats.counting import ReadEvent
from mlhpc.iobench.report.trace import join_parts, write_part

UPTIME = 2e7  # seconds, of a node that has run for months: its clock has steps of 4 ns


def events(run, tmp_path):
    write_part(run, 0, tmp_path)
    join_parts(1, tmp_path, 0)
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def steps(start, times):
    """An epoch whose steps are a microsecond apart: the loop notes more than their times."""
    rows = np.zeros((len(times), len(COLUMNS)))
    for row, parts in zip(rows, times, strict=True):
        row[:5] = start, *parts
        start += sum(parts) + 1e-6
    return EpochTimes(0, steps=rows)


def overlaps(found):
    """Events that neither follow nor contain another of their thread, in nanoseconds as Perfetto computes them."""
    threads = defaultdict(list)
    for event in found:
        if event["ph"] == "X":
            start = int(event["ts"] * 1000.0)
            threads[event["tid"]].append((start, -int(event["dur"] * 1000.0)))
    wrong = 0
    for spans in threads.values():
        open_until = []
        for start, negative in sorted(spans):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            wrong += bool(open_until) and start - negative > open_until[-1]
            open_until.append(start - negative)
    return wrong


def test_events_that_follow_each_other_do_not_overlap(tmp_path):
    random = np.random.default_rng(1)
    run = Run(origin=UPTIME)
    run.epochs.append(steps(UPTIME + 1.0, random.uniform(1e-7, 1e-3, (2000, 4)).tolist()))
    ends = UPTIME + 0.5 + np.cumsum(random.uniform(1e-6, 1e-4, 4000))
    reads = [ReadEvent(a, b - a, 0, 1) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]
    run.events.append((0, reads))
    found = events(run, tmp_path)
    assert len(found) == 3 + 8000 + 3999
    assert overlaps(found) == 0
    # Within the clock's own steps, they are where they were.
    first = next(event for event in found if event["name"] == "wait")
    assert abs(first["ts"] - 1e6) < 0.005


def test_evaluations_and_checkpoints_are_on_the_loops_thread(tmp_path):
    run = Run(origin=100.0)
    run.epochs.append(steps(100.0, [(0.25, 0.5, 0.0, 0.25)]))
    run.evaluations.append(steps(102.0, [(0.25, 0.25, 0.0, 0.0)]))
    run.transfers = [
        Transfer("write", 0, 101.0, 101.5, 7, 0.4, 0.1),
        Transfer("read", 0, 103.0, 103.5, 7, 0.3, 0.0),
    ]
    found = [event for event in events(run, tmp_path) if event["ph"] == "X"]
    assert {event["tid"] for event in found} == {0}
    seen = [(each["name"], each["ts"], each["dur"], each["args"].get("split")) for each in found]
    assert sorted(seen, key=lambda each: each[1]) == [
        ("wait", 0, 250_000, "train"),
        ("compute", 250_000, 500_000, "train"),
        ("barrier", 750_000, 250_000, "train"),
        ("checkpoint write", 1_000_000, 500_000, None),
        ("wait", 2_000_000, 250_000, "validation"),
        ("compute", 2_250_000, 250_000, "validation"),
        ("checkpoint read", 3_000_000, 500_000, None),
    ]
