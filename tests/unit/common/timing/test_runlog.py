"""The record of a run: spans, MLLOG lines, and the record after failures."""

import json
import os
import signal
from contextlib import suppress

import pytest
from mlperf_logging.mllog import mllog as mllog_module

from mlhpc.common.ranks.world import Loss, Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.errors import Terminated, UserError
from mlhpc.record.events import read_events
from mlhpc.run_signals import closing_in_order


class Watched(Solo):
    """A world in which a test can lose a rank."""

    def on_loss(self, callback):
        object.__setattr__(self, "lose", callback)


def mllog(path):
    return [
        json.loads(line.removeprefix(":::MLLOG ")) for line in (path / "run.log").read_text().splitlines()
    ]


def test_spans_nest_and_carry_their_tags(tmp_path):
    with RunLog(tmp_path, Solo()) as log, log.span("run"):
        with log.span("epoch", epoch=1), log.span("train", epoch=1):
            pass
        log.finish("success")
    told = [
        (e["event"], e["name"]) for e in read_events(tmp_path / "events.rank0.jsonl") if e["event"] != "note"
    ]
    assert told == [
        ("begin", "run"), ("begin", "epoch"), ("begin", "train"),
        ("end", "train"), ("end", "epoch"), ("end", "run"),
    ]  # fmt: skip
    # The rules know no span "train"; they call the epoch epoch_num.
    assert [r["key"] for r in mllog(tmp_path)] == ["run_start", "epoch_start", "epoch_stop", "run_stop"]
    assert mllog(tmp_path)[1]["metadata"]["epoch_num"] == 1
    assert mllog(tmp_path)[-1]["metadata"]["status"] == "success"


def test_a_rank_lost_after_the_log_was_closed_changes_nothing(tmp_path):
    world = Watched()
    with RunLog(tmp_path, world) as log, log.span("run"):
        log.finish("success")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    world.lose(Loss(1, "n1", "after the run", "killed"))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_mllog_and_events_use_the_same_clock(tmp_path):
    with RunLog(tmp_path, Solo()) as log, log.span("run"):
        for epoch in range(3):
            with log.span("epoch", epoch=epoch):
                sum(range(200_000))
    ends = [
        e for e in read_events(tmp_path / "events.rank0.jsonl") if e["event"] == "end" and e["name"] == "run"
    ]
    start, stop = (
        next(r["time_ms"] for r in mllog(tmp_path) if r["key"] == key) for key in ("run_start", "run_stop")
    )
    assert (stop - start) / 1e3 == pytest.approx(ends[0]["seconds"], abs=0.0011)


def test_setting_back_the_wall_clock_does_not_change_durations(tmp_path, monkeypatch):
    with RunLog(tmp_path, Solo()) as log, log.span("run"):
        monkeypatch.setattr("time.time", lambda: 0.0)
    stamps = [record["time_ms"] for record in mllog(tmp_path)]
    assert stamps == sorted(stamps) and stamps[0] > 1e12


def test_an_exception_closes_every_interval_and_the_run_is_aborted(tmp_path):
    with (
        pytest.raises(ZeroDivisionError),
        RunLog(tmp_path, Solo()) as log,
        log.span("run"),
        log.span("epoch", epoch=1),
    ):
        raise ZeroDivisionError("by hand")
    assert [r["key"] for r in mllog(tmp_path)] == ["run_start", "epoch_start", "epoch_stop", "run_stop"]
    assert mllog(tmp_path)[-1]["metadata"]["status"] == "aborted"
    ends = [e for e in read_events(tmp_path / "events.rank0.jsonl") if e["event"] == "end"]
    assert all(e["error"] == "ZeroDivisionError: by hand" for e in ends) and len(ends) == 2


def test_a_met_target_is_not_a_success_if_the_run_fails_afterwards(tmp_path):
    """The barrier at the end can fail on a lost rank, after the evaluation that met the target."""

    class Broken(Solo):
        def barrier(self):
            if not (tmp_path / "run.log").read_text():
                return
            raise ConnectionError("a rank is gone")

    with pytest.raises(ConnectionError), RunLog(tmp_path, Broken()) as log, log.span("run", sync=True):
        log.finish("success")
    assert mllog(tmp_path)[-1]["metadata"]["status"] == "aborted"


def test_the_loss_of_a_rank_is_recorded_once(tmp_path):
    world = Watched()
    with RunLog(tmp_path, world) as log, log.span("run"), log.span("epoch", epoch=2):
        world.lose(Loss(1, "n1", "epoch 2", "killed"))
    stops = [r for r in mllog(tmp_path) if r["key"] == "run_stop"]
    assert len(stops) == 1
    assert stops[0]["metadata"]["status"] == "aborted"
    assert "rank 1 on n1" in stops[0]["metadata"]["reason"] and "epoch 2" in stops[0]["metadata"]["reason"]


def test_only_rank_0_writes_mllog_and_every_rank_its_events(tmp_path):
    with RunLog(tmp_path, Solo(rank=1, size=2)) as log, log.span("run"):
        pass
    assert not (tmp_path / "run.log").exists()
    assert read_events(tmp_path / "events.rank1.jsonl")


def test_timed_yields_every_item_and_counts_the_waits(tmp_path):
    with RunLog(tmp_path, Solo()) as log:
        assert list(log.timed(iter("abc"), "data_wait", epoch=4)) == ["a", "b", "c"]
    event, _ = read_events(tmp_path / "events.rank0.jsonl")
    assert (event["name"], event["epoch"], event["count"]) == ("data_wait", 4, 3)
    assert 0 <= event["max"] <= event["seconds"]


def test_an_unwritable_folder_is_named(tmp_path):
    with pytest.raises(UserError, match="absent"):
        RunLog(tmp_path / "absent", Solo())


def test_a_rank_that_raises_reports_it_before_its_phase_ends(tmp_path):
    told = []

    class Told(Solo):
        def enter(self, phase):
            told.append(phase)

        def fail(self, reason):
            told.append(reason)

    with (
        pytest.raises(ValueError),
        RunLog(tmp_path, Told()) as log,
        log.span("run"),
        log.span("epoch", epoch=3),
    ):
        raise ValueError("by hand")
    assert told[:3] == ["run", "epoch 3", "ValueError: by hand"]
    assert all(word == "ValueError: by hand" for word in told[2:])


def test_a_survivor_does_not_touch_a_log_closed_by_rank_0(tmp_path):
    with RunLog(tmp_path, Solo()) as log, log.span("run"):
        pass
    survivor = Watched(rank=1, size=2)
    with RunLog(tmp_path, survivor) as log, log.span("run"):
        survivor.lose(Loss(0, "n0", "epoch 2", "ValueError"))
    assert [r["key"] for r in mllog(tmp_path)].count("run_stop") == 1


def test_a_survivor_closes_the_log_of_a_killed_rank_0(tmp_path, monkeypatch):
    monkeypatch.setattr("mlhpc.common.timing.runlog.RANK_0_MAY_STILL_WRITE_S", 0.1)
    (tmp_path / "run.log").touch()
    survivor = Watched(rank=1, size=2)
    with RunLog(tmp_path, survivor) as log, log.span("run"):
        survivor.lose(Loss(0, "n0", "epoch 2", "killed"))
    assert [r["key"] for r in mllog(tmp_path)] == ["run_stop"]


@pytest.mark.parametrize("full", ["run.log", "events.rank0.jsonl"])
def test_a_record_that_cannot_be_written_ends_the_run_with_a_one_line_error(tmp_path, full, capfd):
    """/dev/full accepts no data: the disk is full in the middle of a run."""
    (tmp_path / full).symlink_to("/dev/full")
    reached = False
    with (
        pytest.raises(UserError, match=f"{tmp_path}/{full} cannot be written: No space left on device"),
        RunLog(tmp_path, Solo()) as log,
        log.span("run"),
        log.span("epoch", epoch=1),
    ):
        reached = True
    assert not reached, "training does not go on without its record"
    assert capfd.readouterr().err == "", "nothing of logging's own"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_in_the_middle_of_a_record_ends_the_run(tmp_path, monkeypatch, request, number):
    """mlperf-logging catches every exception while it writes a record, and continues."""
    encode, sent = mllog_module._encode_log, []

    def signalled(*words):
        if "eval_start" in words and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)
        return encode(*words)

    monkeypatch.setattr(mllog_module, "_encode_log", signalled)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with (
        pytest.raises((Terminated, KeyboardInterrupt)),
        RunLog(tmp_path, Solo()) as log,
        closing_in_order(Solo(), tmp_path),
        log.span("run"),
    ):
        with log.span("epoch", epoch=1), log.span("eval", epoch=1):
            pass
        raise AssertionError("the run goes on")
    stops = [record["metadata"]["status"] for record in mllog(tmp_path) if record["key"] == "run_stop"]
    assert sent and stops == ["aborted"]


def test_an_epoch_logs_its_number_of_updates(tmp_path):
    with RunLog(tmp_path, Solo()) as log, log.span("run"), log.span("epoch", epoch=2, step=30) as ended:
        ended["step"] = 37
    told = [r["metadata"]["step_num"] for r in mllog(tmp_path) if r["key"] in ("epoch_start", "epoch_stop")]
    assert told == [30, 37]


def test_only_spans_with_sync_wait_for_other_ranks(tmp_path):
    calls = []

    class Ranks(Solo):
        def barrier(self):
            calls.append([e["event"] for e in read_events(tmp_path / "events.rank0.jsonl")])

    with RunLog(tmp_path, Ranks()) as log:
        with log.span("run"), log.span("staging"), log.span("init"):
            pass
        assert calls == []
        with log.span("epoch", epoch=1, sync=True):
            pass
    before = ["begin", "begin", "begin", "end", "end", "end"]
    # Once before it begins, once before it ends: no edge is recorded before all ranks have arrived.
    assert calls == [before, [*before, "begin"]]
    assert all("sync" not in e for e in read_events(tmp_path / "events.rank0.jsonl"))


def test_percentiles_of_step_times_are_in_the_events(tmp_path):
    with RunLog(tmp_path, Solo()) as log:
        for _ in log.timed(range(5), "data_wait", epoch=2):
            pass
    wait, steps = read_events(tmp_path / "events.rank0.jsonl")
    assert (steps["event"], steps["name"], steps["epoch"], steps["count"]) == ("steps", "train", 2, 5)
    for event in (wait, steps):
        assert 0 <= event["p50"] <= event["p90"] <= event["p99"] <= event["max"] <= event["seconds"]


def test_the_steps_of_an_epoch_count_on_after_an_evaluation_within_it(tmp_path):
    with RunLog(tmp_path, Solo()) as log:
        for epoch in (1, 1, 2):
            for name, phase, count in (("data_wait", "train", 3), ("eval_data_wait", "eval", 2)):
                for _ in log.timed(range(count), name, None, phase, epoch=epoch):
                    log._report(phase, 5.0, False)
    reported = [e for e in read_events(tmp_path / "events.rank0.jsonl") if e["event"] == "progress"]
    assert [e["step"] for e in reported if e["name"] == "train"] == [1, 2, 3, 4, 5, 6, 1, 2, 3]
    assert [e["step"] for e in reported if e["name"] == "eval"] == [1, 2] * 3


def test_a_mark_records_the_waits_of_all_loops_so_far(tmp_path):
    with RunLog(tmp_path, Solo()) as log:
        for _ in log.timed(range(2), "data_wait", epoch=1):
            pass
        for step in log.timed(range(3), "data_wait", epoch=2):
            if step == 1:
                log.mark("warm")
    first, mark, second = (
        e for e in read_events(tmp_path / "events.rank0.jsonl") if e["event"] in ("timed", "mark")
    )
    assert first["seconds"] < mark["waited"]["data_wait"] <= first["seconds"] + second["seconds"]


def test_the_end_of_a_run_records_its_peak_memory(tmp_path):
    with RunLog(tmp_path, Solo()) as log, log.span("run"):
        log.finish("success", device_peak_bytes=17)
    (note,) = (e for e in read_events(tmp_path / "events.rank0.jsonl") if e["name"] == "memory")
    assert note["device_peak_bytes"] == 17
    assert 2**20 < note["peak_bytes"] < 2**40


class Recorded:
    """Ranges as a profiler sees them: each with those around it, when it begins."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.seen: list[str] = []

    def range_push(self, msg: str, /) -> None:
        self.open.append(msg)
        self.seen.append(" > ".join(self.open))

    def range_pop(self) -> None:
        self.open.pop()


def test_spans_waits_and_steps_are_ranges_of_the_device_from_when_it_is_known(tmp_path):
    with RunLog(tmp_path, Solo()) as log:
        with log.span("init"):
            log.ranges = ranges = Recorded()  # whose beginning it has not seen
        with log.span("run"), log.span("epoch", epoch=2):
            list(log.timed("ab", "data_wait", epoch=2))
    epoch = "run > epoch 2"
    one = [f"{epoch} > data_wait", f"{epoch} > train step"]
    assert ranges.seen == ["run", epoch, *one, *one, f"{epoch} > data_wait"] and ranges.open == []


def test_a_range_ends_with_an_exception_too(tmp_path):
    ranges = Recorded()
    with RunLog(tmp_path, Solo()) as log:
        log.ranges = ranges
        with suppress(ZeroDivisionError), log.span("run"), log.span("eval", epoch=1):
            raise ZeroDivisionError
    assert ranges.seen == ["run", "run > eval of epoch 1"] and ranges.open == []
