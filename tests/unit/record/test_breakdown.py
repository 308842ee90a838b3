"""Breakdown of time to train: parts that add up, computed by hand."""

import pytest

from mlhpc.common.ranks.world import Solo
from mlhpc.common.timing.runlog import RunLog
from mlhpc.record.breakdown import breakdown
from mlhpc.record.events import read_events
from mlhpc.record.mllog import parse
from mlhpc.record.phases import phases


def events(trains, waits, evals, staging=0.0, rest=0.0):
    made = [{"event": "end", "name": "staging", "seconds": staging}] if staging else []
    for number, (train, wait, evaluation) in enumerate(zip(trains, waits, evals, strict=True), 1):
        made += [
            {"event": "timed", "name": "data_wait", "epoch": number, "seconds": wait},
            {"event": "end", "name": "train", "epoch": number, "seconds": train},
            {"event": "end", "name": "eval", "epoch": number, "seconds": evaluation},
        ]
    total = staging + sum(trains) + sum(evals) + rest
    return [*made, {"event": "end", "name": "run", "seconds": total}]


def test_parts_equal_a_calculation_by_hand():
    told = breakdown(events([20, 10, 12, 11], [9, 1, 2, 1], [3, 1, 1, 1], staging=5, rest=0.5))
    # First epoch: waits 9 against a median of 1, steps 11 against 10,
    # evaluation 3 against 1.
    assert told.parts() == pytest.approx(
        {
            "staging": 5,
            "first_epoch_excess": 8 + 1 + 2,
            "data_wait": 5,
            "step": 10 + 9 + 10 + 10,
            "evaluation": 4,
            "rest": 0.5,
        }
    )
    assert told.total == pytest.approx(64.5)
    assert told.without_staging == pytest.approx(59.5)


def test_exchanges_between_epochs_are_a_part_of_their_own():
    made = events([20, 10], [1, 1], [1, 1], staging=5, rest=0.5)
    made[-1]["seconds"] += 3.5
    made += [{"event": "end", "name": "exchange", "epoch": n, "seconds": s} for n, s in ((2, 1.5), (3, 2.0))]
    told = breakdown(made)
    assert told.parts()["exchange"] == 3.5
    assert told.rest == pytest.approx(0.5) and told.without_staging == pytest.approx(told.total - 5)
    assert "exchange" not in breakdown(events([20, 10], [1, 1], [1, 1])).parts()


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_parts_add_up_to_time_to_train(count):
    told = breakdown(
        events([9.0] + [7.5] * (count - 1), [0.25] * count, [1.5] * count, staging=2, rest=0.125)
    )
    assert sum(part or 0 for part in told.parts().values()) == pytest.approx(told.total)
    assert told.rest == pytest.approx(0.125)


def test_excess_is_unknown_without_enough_epochs_for_a_median():
    assert breakdown(events([20, 10], [1, 1], [1, 1])).first_epoch_excess is None
    assert breakdown(events([20, 10, 10], [1] * 3, [1] * 3)).first_epoch_excess is not None


def test_an_epoch_cut_short_by_the_target_does_not_enter_the_median():
    made = events([10, 10, 10, 2], [1, 1, 1, 0.2], [3, 3, 3, 1])
    for event, count in zip([e for e in made if e["event"] == "timed"], [8, 8, 8, 2], strict=True):
        event["count"] = count
    assert breakdown(made).first_epoch_excess == 0
    del made[3:6]  # two whole epochs and a part of one
    made[-1]["seconds"] = 22 + 7
    assert breakdown(made).first_epoch_excess is None


def test_evaluations_are_compared_one_by_one():
    """Not every epoch has one, and one may have several: as ResNet-50 and DeepCAM are evaluated."""
    made = events([10, 10, 10, 10, 10], [1] * 5, [4, 0, 3, 0, 3])
    some = [e for e in made if e["name"] != "eval" or e["seconds"]]
    assert breakdown(some).first_epoch_excess == 1
    often = [e for e in made if e["name"] != "eval"]
    often[2:2] = [{"event": "end", "name": "eval", "epoch": 1, "seconds": s} for s in (5, 2)]
    often[6:6] = [{"event": "end", "name": "eval", "epoch": 2, "seconds": s} for s in (2, 1)]
    told = breakdown(often)
    assert told.first_epoch_excess == 3 and told.evaluation == 7


def test_a_fast_first_epoch_has_no_excess():
    assert breakdown(events([8, 10, 10], [0, 1, 1], [1, 1, 1])).first_epoch_excess == 0


def test_a_run_without_an_end_has_no_breakdown():
    with pytest.raises(ValueError, match="no finished run"):
        breakdown([{"event": "begin", "name": "run"}])


def test_events_of_a_killed_rank_are_read_up_to_the_truncated_line(tmp_path):
    path = tmp_path / "events.rank0.jsonl"
    path.write_text('{"event": "begin", "name": "run"}\n{"event": "end", "na')
    assert read_events(path) == [{"event": "begin", "name": "run"}]


def test_waits_of_all_ranks_replace_those_of_rank_0():
    made = events([20, 10], [1, 1], [3, 3])
    made += [
        {"event": "waited", "name": name, "epoch": epoch, "seconds": seconds, "count": 5, "lost": []}
        for name, epoch, seconds in (("data_wait", 1, 12), ("data_wait", 1, 2), ("data_wait", 2, 4),
                                     ("eval_data_wait", 2, 2))
    ]  # fmt: skip
    told = breakdown(made)
    assert (told.data_wait, told.step, told.evaluation) == (18, 12, 6)
    assert [epoch.eval_data_wait_s for epoch in told.epochs] == [0, 2]
    assert sum(part or 0 for part in told.parts().values()) == told.total
    made[-1]["seconds"], made[-2]["seconds"] = 3.01, 10.01  # ranks leave a barrier one after the other
    told = breakdown(made)
    assert (told.data_wait, told.epochs[1].eval_data_wait_s) == (24, 3)
    assert all(part >= 0 for part in told.parts().values() if part is not None)


@pytest.mark.parametrize(
    ("waits", "steps", "excess", "wait"),
    [
        # Later epochs wait less because their steps take longer: the first took 5 s more than they did.
        ((10, 1, 1, 1), (1, 5, 5, 5), 5, 13 - 5),
        ((6, 2, 2, 2), (12, 6, 6, 6), 10, 12 - 4),
        ((0, 0, 0, 0), (9, 5, 5, 5), 4, 0),
        # The medians of the parts do not add up to that of their sum.
        ((5, 0, 4, 4), (5, 4, 0, 4), 6, 13 - 3),
    ],
)
def test_the_excess_is_that_of_training_and_divided_in_proportion(waits, steps, excess, wait):
    trains = [a + b for a, b in zip(waits, steps, strict=True)]
    told = breakdown(events(trains, waits, [1] * 4))
    assert (told.first_epoch_excess, told.data_wait) == (excess, pytest.approx(wait))
    assert told.step == pytest.approx(sum(trains) - excess - wait)


def test_an_epoch_trained_in_parts_sums_their_waits():
    """Evaluations inside an epoch cut its training, and its record of waits, into parts."""
    made = events([10, 12, 11], [1] * 3, [1] * 3)
    made[3:5] = [
        {"event": kind, "name": name, "epoch": 2, "seconds": seconds, "count": 4}
        for kind, name, seconds in (
            ("timed", "data_wait", 2.0), ("end", "train", 7.0),
            ("timed", "data_wait", 0.5), ("end", "train", 5.0),
        )
    ]  # fmt: skip
    second = breakdown(made).epochs[1]
    assert (second.train_s, second.data_wait_s, second.step_s) == (12.0, 2.5, 9.5)


def test_our_breakdown_and_that_of_any_log_agree(tmp_path, monkeypatch):
    """The log of a run of this suite gives the parts that its events give; it does not divide training."""
    now = 0.0
    monkeypatch.setattr("time.perf_counter", lambda: now)

    def spend(seconds):
        nonlocal now
        now += seconds

    def batches(seconds):
        for _ in range(2):
            spend(seconds / 2)
            yield None

    with RunLog(tmp_path, Solo()) as log:
        log.hyperparameters({"train_samples": 2})
        with log.span("run", sync=True):
            with log.span("staging", sync=True):
                spend(5)
            for epoch, (wait, step, evaluation) in enumerate(
                [(9, 11, 3), (1, 9, 1), (2, 10, 1), (1, 10, 1)], 1
            ):
                with log.span("epoch", epoch=epoch):
                    with log.span("train", epoch=epoch):
                        for _ in log.timed(batches(wait), "data_wait", epoch=epoch):
                            spend(step / 2)
                    with log.span("eval", epoch=epoch):
                        spend(evaluation)
                spend(0.5)
            log.finish("success")
    told, logged = (
        breakdown(read_events(tmp_path / "events.rank0.jsonl")),
        phases(parse(tmp_path / "run.log")),
    )
    parts = told.parts()
    parts["training"] = parts.pop("data_wait") + parts.pop("step")
    assert parts["first_epoch_excess"] == pytest.approx(11) and parts["rest"] == pytest.approx(2)
    assert logged and logged.parts() == pytest.approx(parts, abs=1e-3)
    assert logged.total == pytest.approx(told.total, abs=1e-3)
