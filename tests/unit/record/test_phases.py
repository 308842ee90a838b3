"""The parts of a run, only from its log."""

from pathlib import Path
from typing import Any

import pytest
from golden.make_tree import records, write_log
from helpers.compare_logs import SAMPLES, epochs, made_log

from mlhpc.record.mllog import parse
from mlhpc.record.phases import Phases, phases
from mlhpc.submission.report.compare import compare


def phases_of(path: Path) -> Phases:
    parts = phases(parse(path))
    assert parts
    return parts


def near(**seconds: float) -> Any:
    return pytest.approx(seconds, abs=1e-6)


def test_every_second_of_a_run_belongs_to_a_part(tmp_path: Path) -> None:
    staging = [(2.0, "staging_start"), (62.0, "staging_stop")]
    run = [*staging, *epochs(70, [50, 20, 20, 22], [9, 4, 4, 4]), (205.0, "run_stop")]
    parts = phases_of(made_log(tmp_path / "a.txt", run))
    # The first epoch took 50 s where the median of the later ones is 20, its evaluation 9 where it is 4.
    assert parts.parts() == near(staging=60, first_epoch_excess=35, training=82, evaluation=16, rest=12)
    assert parts.total == pytest.approx(205)
    assert parts.epoch_s == pytest.approx(133 / 4)
    assert parts.train_rate == pytest.approx(4 * SAMPLES / 112)


def test_records_after_run_stop_are_ignored(tmp_path: Path) -> None:
    run = [*epochs(0, [20, 20, 20], [4, 4, 4]), (72.0, "run_stop")]
    goes_on = [*run, *epochs(80, [500, 500], [9, 9], first=4), (2000.0, "run_stop")]
    short, longer = (
        phases_of(made_log(tmp_path / f"{n}.txt", events)) for n, events in enumerate((run, goes_on))
    )
    assert short == longer
    assert len(longer.epochs) == 3


@pytest.mark.parametrize("first", [0, 1])
def test_epochs_may_be_counted_from_zero(first: int, tmp_path: Path) -> None:
    run = [*epochs(0, [20] * 5, [4] * 5, first=first), (120.0, "run_stop")]
    made_log(tmp_path / "result_1.txt", run)
    (entry,) = compare([tmp_path]).entries
    assert entry.epochs == (5, None, 1)


def test_evaluations_need_not_follow_epochs(tmp_path: Path) -> None:
    """As DeepCAM of round 0.7: after a fixed number of steps, with checkpoints, the last epoch cut short by the
    target."""
    events: list[Any] = [(0.0, "staging_start"), (100.0, "staging_stop")]
    for n in range(4):
        steps = {"epoch_num": n + 1, "step_num": 50 * n}
        events.append((100.0 + 60 * n, "epoch_start", None, steps))
        if n > 0:
            at = 110.0 + 60 * n
            events += [(at, "eval_start"), (at + 6, "eval_stop")]
            events += [(at + 6, "eval_accuracy", 0.83 if n == 3 else 0.5)]
            events += [(at + 6, "save_start"), (at + 10, "save_stop")]
        stop = {"epoch_num": n + 1, "step_num": 50 * (n + 1) if n < 3 else 170}
        events.append((100.0 + 60 * (n + 1) if n < 3 else 310.0, "epoch_stop", None, stop))
    events.append((310.0, "run_stop"))
    facts = {"submission_benchmark": "deepcam", "train_samples": 3300, "global_batch_size": 64}
    parts = phases_of(made_log(tmp_path / "a.txt", events, **facts))
    # Training 60 + 50 + 50 + 20 s; the first epoch is 60 s where the median of the other whole ones is 50.
    assert parts.parts() == near(staging=100, first_epoch_excess=10, training=170, evaluation=18, rest=12)
    assert [e.samples for e in parts.epochs] == [3200, 3200, 3200, 1280]  # the last of 20 steps
    assert parts.train_rate == pytest.approx(10880 / 180)
    assert parts.epoch_s == pytest.approx(210 / 4)  # checkpoints are part of an epoch


def test_an_evaluation_beside_the_next_epoch_takes_no_time_from_its_training(tmp_path: Path) -> None:
    """As NVIDIA's OC20 of HPC 3.0 on 80 nodes: epochs of 20 s, each evaluated for 8 s while the next one trains,
    and the last one for 8 s after all training."""
    events: list[Any] = []
    for n in range(5):
        begin = 20.0 * n
        if n < 4:
            events.append((begin, "epoch_start", None, {"epoch_num": n + 1}))
        if n:
            events.append((begin, "eval_start", None, {"epoch_num": n}))
            events += [(begin + 8, key, None, {"epoch_num": n}) for key in ("eval_stop", "epoch_stop")]
    parts = phases_of(made_log(tmp_path / "a.txt", [*events, (90.0, "run_stop")]))
    assert parts.parts() == near(staging=0, first_epoch_excess=0, training=80, evaluation=8, rest=2)
    assert parts.train_rate == pytest.approx(4 * SAMPLES / 80)


def test_an_evaluation_that_the_next_epoch_overtakes_ends_there(tmp_path: Path) -> None:
    """It takes time alone until the next epoch begins, and none after that."""
    number = [{"epoch_num": n} for n in (1, 2)]
    events = [
        (0.0, "epoch_start", None, number[0]), (100.0, "eval_start", None, number[0]),
        (101.0, "epoch_start", None, number[1]), (110.0, "eval_stop", None, number[0]),
        (110.0, "epoch_stop", None, number[0]), (201.0, "eval_start", None, number[1]),
        (210.0, "eval_stop", None, number[1]), (210.0, "epoch_stop", None, number[1]), (210.0, "run_stop"),
    ]  # fmt: skip
    parts = phases_of(made_log(tmp_path / "a.txt", events))
    assert parts.parts() == near(staging=0, first_epoch_excess=0, training=200, evaluation=10, rest=0)


def test_overlapping_staging_counts_once(tmp_path: Path) -> None:
    events = [
        (0.0, "staging_start"), (1.0, "staging_start"), (8.0, "staging_stop"), (10.0, "staging_stop"),
        (10.0, "epoch_start"), (20.0, "staging_start"), (25.0, "staging_stop"), (40.0, "epoch_stop"),
        (41.0, "run_stop"),
    ]  # fmt: skip
    parts = phases_of(made_log(tmp_path / "a.txt", events))
    assert parts.staging == 15
    assert parts.training == 25
    assert parts.first_epoch_excess is None  # one epoch leaves no median


def test_a_clock_that_goes_back_gives_no_negative_time(tmp_path: Path) -> None:
    run = [(5.0, "staging_start"), (3.0, "epoch_start"), (15.0, "staging_stop"), (30.0, "epoch_stop"),
           (31.0, "run_stop")]  # fmt: skip
    parts = phases_of(made_log(tmp_path / "a.txt", run))
    assert parts.total == pytest.approx(31)
    assert all(seconds >= 0 for seconds in parts.parts().values())


@pytest.mark.parametrize("lacks", ["run_start", "run_stop"])
def test_a_run_without_both_ends_has_no_parts(lacks: str, tmp_path: Path) -> None:
    made = [r for r in records() if r["key"] != lacks]
    assert phases(parse(write_log(tmp_path / "a.txt", made))) is None
