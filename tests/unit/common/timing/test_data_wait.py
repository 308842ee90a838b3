"""Data wait of several ranks, against a calculation in plain loops, and in the record of a run."""

import random
import threading

import numpy as np
import pytest
from helpers.thread_world import on_ranks

from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing import data_wait, runlog
from mlhpc.common.timing.data_wait import Waits, by_interval, slow_batches
from mlhpc.common.timing.runlog import RunLog
from mlhpc.common.timing.steps import StepTimer
from mlhpc.record.breakdown import epoch_times, waits_are_of_all_ranks
from mlhpc.record.events import read_events


def by_hand(waits, passes):
    """Data wait, and what each rank cost, of ``waits`` [rank][batch] in seconds."""
    seconds, cost = 0.0, dict.fromkeys(range(len(waits)), 0.0)
    for begin in range(0, len(waits[0]), passes):
        sums = []
        for of_rank in waits:
            in_step = 0.0
            for batch in range(begin, begin + passes):
                in_step += of_rank[batch]
            sums.append(in_step)
        slowest = sums.index(max(sums))
        seconds += sums[slowest]
        cost[slowest] += sums[slowest]
    return seconds, {rank: lost for rank, lost in cost.items() if lost}


def reduced(parts_of, ranks=2):
    """What the ranks agree on, if rank r keeps ``parts_of(r)``."""
    results = on_ranks(1, ranks, lambda world: data_wait.reduce(world, parts_of(world.rank)))
    assert all(result == results[0] for result in results)
    return results[0]


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_it_is_the_largest_sum_of_waits_of_any_rank_between_two_meetings(ranks, passes):
    draw = random.Random(ranks + passes)
    waits = [[draw.choice([0.0, 0.1, draw.expovariate(5)]) for _ in range(24)] for _ in range(ranks)]
    kept = [by_interval(of_rank, passes) for of_rank in waits]
    (loop,) = reduced(lambda rank: [Waits("data_wait", {"epoch": 3}, kept[rank], kept[rank])], ranks)
    seconds, cost = by_hand(waits, passes)
    assert loop.seconds == pytest.approx(seconds, rel=1e-6)
    assert dict(loop.lost) == pytest.approx(cost, rel=1e-6)
    assert (loop.name, loop.tags, loop.intervals) == ("data_wait", {"epoch": 3}, 24 // passes + 1)
    assert data_wait.seconds_of(kept) == pytest.approx(seconds, rel=1e-6)


def test_an_evaluation_is_one_interval_for_any_number_of_batches():
    own = [by_interval([1.0, 0.5], None, 0.25), by_interval([], None, 2.0)]
    (loop,) = reduced(lambda rank: [Waits("eval_data_wait", {}, own[rank], own[rank])])
    assert (loop.seconds, loop.lost, loop.intervals) == (2.0, {1: 2.0}, 1)


def test_waits_for_a_rank_that_reads_for_others_are_its_own():
    """Ranks that share samples all wait as long as the one that reads: it is named."""
    wait, own = by_interval([0.25, 0.5], 1), [by_interval(each, 1) for each in ([0.25, 0.125], [0.0, 0.5])]
    (loop,) = reduced(lambda rank: [Waits("data_wait", {}, wait, own[rank])])
    assert (loop.seconds, loop.lost) == (0.75, {0: 0.25, 1: 0.5})


def test_only_the_ranks_with_most_are_listed():
    of_rank = [np.eye(12, dtype=np.float32)[rank] * (rank + 1) for rank in range(12)]
    (loop,) = reduced(lambda rank: [Waits("data_wait", {}, of_rank[rank], of_rank[rank])], 12)
    assert loop.seconds == 78 and list(loop.lost.items()) == [(rank, rank + 1) for rank in range(11, 3, -1)]


def test_ranks_that_did_not_take_the_same_steps_met_only_at_the_end():
    own = [by_interval([1.0, 0.5], 1), by_interval([0.5, 0.5, 0.25], 1)]
    (loop,) = reduced(lambda rank: [Waits("data_wait", {}, own[rank], own[rank])])
    assert (loop.seconds, loop.intervals) == (1.5, 1)
    assert reduced(lambda rank: [Waits("data_wait", {}, own[rank], own[rank])] * rank) is None


# In the record of a run. Its ranks are threads, each with a clock that only loading and stepping advance.


@pytest.fixture
def clock(monkeypatch):
    local = threading.local()

    def read():
        return getattr(local, "now", 0.0)

    def advance(seconds):
        local.now = read() + seconds

    monkeypatch.setattr(runlog, "StepTimer", lambda record: StepTimer(record, read))
    return advance


def train(world, out, clock, waits, evaluation, passes=1, mark=None, fail=False, step=lambda: 1.0):
    def load(seconds):
        for wait in seconds:
            clock(wait)
            yield wait

    with RunLog(out, world) as log, log.span("run", sync=True):
        with log.span("epoch", epoch=1):
            with log.span("train", epoch=1):
                loop = log.timed(load(waits), "data_wait", passes=passes, epoch=1)
                for number, _ in enumerate(loop, 1):
                    clock(step())
                    if number == mark:
                        log.mark("warm")
            if fail:
                raise ZeroDivisionError
            for _ in log.timed(load(evaluation), "eval_data_wait", None, "eval", epoch=1):
                pass
        log.finish("success")


def waited(out):
    return [e for e in read_events(out / "events.rank0.jsonl") if e["event"] == "waited"]


def test_a_rank_that_waits_for_its_files_is_seen_by_rank_0(tmp_path, clock):
    waits, evaluations = ([0.0] * 4, [3.0, 1.0, 2.0, 0.0]), ([0.5, 0.5], [0.25])
    assert (
        on_ranks(1, 2, lambda w: train(w, tmp_path, clock, waits[w.rank], evaluations[w.rank])) == [None] * 2
    )
    training, evaluation = waited(tmp_path)
    assert (training["name"], training["epoch"], training["count"]) == ("data_wait", 1, 5)
    assert (training["seconds"], training["lost"]) == (6.0, [[1, 6.0]])
    assert (evaluation["name"], evaluation["count"]) == ("eval_data_wait", 1)
    assert (evaluation["seconds"], evaluation["lost"]) == (1.0, [[0, 1.0]])
    own = [e for e in read_events(tmp_path / "events.rank0.jsonl") if e["event"] == "timed"]
    assert own[0]["seconds"] == 0.0
    assert not any(e["event"] == "waited" for e in read_events(tmp_path / "events.rank1.jsonl"))


def test_a_rank_that_is_slow_in_computing_never_becomes_data_wait(tmp_path, clock):
    """Not by its long steps, and not by the short waits that these leave it."""
    waits = [0.5, 0.5, 0.5], [0.0, 0.0, 0.0]
    on_ranks(
        1, 2, lambda w: train(w, tmp_path, clock, waits[w.rank], [], step=lambda: 1.0 + 50.0 * (w.rank == 1))
    )
    assert waited(tmp_path)[0]["seconds"] == 1.5 and waited(tmp_path)[0]["lost"] == [[0, 1.5]]


def test_the_batches_of_a_step_with_accumulation_are_one_interval(tmp_path, clock):
    waits = [1.0, 0.0, 0.0, 1.0], [0.0, 1.5, 0.0, 0.0]
    on_ranks(1, 2, lambda w: train(w, tmp_path, clock, waits[w.rank], [], passes=2))
    assert waited(tmp_path)[0]["seconds"] == 1.5 + 1.0


def test_what_was_waited_before_a_mark_is_kept_apart(tmp_path, clock):
    waits = [1.0, 0.0, 0.0, 1.0], [0.0, 8.0, 2.0, 0.0]
    on_ranks(1, 2, lambda w: train(w, tmp_path, clock, waits[w.rank], [], mark=2))
    before, after, _ = waited(tmp_path)
    assert (before["seconds"], after["seconds"]) == (9.0, 3.0)
    assert "after" not in before and after["after"] == "warm"


def test_the_ranks_agree_only_after_the_clock(tmp_path, clock):
    """Inside it there are only the two barriers of the span."""
    calls = []

    class Recorded(Solo):
        def __getattribute__(self, name):
            if name in ("barrier", "sum", "max", "gather", "broadcast"):
                calls.append((name, [e["event"] for e in read_events(tmp_path / "events.rank0.jsonl")][-1:]))
            return super().__getattribute__(name)

    train(Recorded(), tmp_path, clock, [1.0] * 3, [1.0])
    assert [name for name, _ in calls[:2]] == ["barrier"] * 2
    assert {name for name, _ in calls[2:]} == {"max", "gather"} and len(calls) > 2
    # After the run's end, which is an "end"; the reduced waits follow.
    assert all(last in (["end"], ["waited"]) for _, last in calls[2:])


def test_an_aborted_run_has_only_the_waits_of_each_rank(tmp_path, clock):
    results = on_ranks(1, 2, lambda w: train(w, tmp_path, clock, [float(w.rank)] * 2, [], fail=True))
    assert all(isinstance(result, ZeroDivisionError) for result in results)
    events = read_events(tmp_path / "events.rank0.jsonl")
    assert not waits_are_of_all_ranks(events) and epoch_times(events)[0].data_wait_s == 0.0


def test_a_batch_is_slow_beside_others_of_its_place():
    """The first batch of each epoch is waited for in whole: here a second, in the third epoch ten."""
    waits = {epoch: [1.0] + [0.01] * 9 for epoch in (1, 2, 3)}
    waits[2][3], waits[3][0], waits[1][5] = 2.0, 10.0, 0.4  # the last is too short to matter
    kept = [
        Waits("data_wait", {"epoch": epoch}, np.array([*own, 5.0]), np.array([*own, 5.0]))
        for epoch, own in waits.items()
    ]
    slow = slow_batches(kept, rank=7)
    assert [(each.rank, each.epoch, each.step, each.seconds) for each in slow] == [
        (7, 3, 1, 10.0),
        (7, 2, 4, 2.0),
    ]
    assert slow_batches([], rank=0) == []
