"""A run recomputed for other storage and other ranks, against a simulation of loaders written apart from it."""

import random
from dataclasses import replace

import pytest
from golden.make_run import make_run
from helpers import loader_model

from mlhpc.errors import UserError
from mlhpc.perf.what_if import Change, parse, what_if
from mlhpc.record.result import Emulation, Staging
from mlhpc.record.run_directory import read

STEPS, PER_BATCH = 40, 4


def simulated(reading_s: float, step_s: float, threads: int, spread: float) -> tuple[float, float]:
    """Seconds of an epoch and its data wait, where a sample takes about ``reading_s``."""
    draw = random.Random(5)
    batches = [
        [reading_s * draw.uniform(1 - spread, 1 + spread) for _ in range(PER_BATCH)] for _ in range(STEPS)
    ]
    seconds, waited, _ = loader_model.train(
        [loader_model.Threads(batches, threads, 2)], [[step_s] * STEPS], 1
    )
    return seconds, waited


def run_of(folder, seconds: float, waited: float, *, staging: float = 0.0):
    """A run of one epoch that trained for ``seconds``, and waited for data."""

    def change(result):
        epoch = result["epochs"][0] | {"train_s": seconds, "data_wait_s": waited, "step_s": seconds - waited}
        batch = result["global_batch_size"]
        result["epochs"] = [epoch | {"samples": batch * STEPS, "eval_s": 2.0, "eval_data_wait_s": 0.0}]
        result["breakdown_s"] = {
            "staging": staging, "first_epoch_excess": None, "data_wait": waited, "step": seconds - waited,
            "evaluation": 2.0, "rest": 0.5,
        }  # fmt: skip

    return read(make_run(folder, result=change))


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("spread", [0.0, 0.5])
@pytest.mark.parametrize("reading_s", [0.2, 0.08, 0.055])
def test_faster_storage_gives_what_the_simulation_of_it_gives(tmp_path, reading_s, threads, spread):
    """Steps of 50 ms; from four times as long as these to hidden by them once storage is twice as fast."""
    reading_s *= threads / PER_BATCH
    slow, fast = (simulated(each, 0.05, threads, spread) for each in (reading_s, reading_s / 2))
    answer = what_if(run_of(tmp_path / "run", *slow), Change(storage=2))
    (case,) = answer.cases
    assert answer.measured.total_s == pytest.approx(slow[0] + 2.5)
    assert case.total_s == pytest.approx(fast[0] + 2.5, rel=0.1)
    assert case.parts["data_wait"] == pytest.approx(fast[1], abs=0.1 * fast[0])
    assert case.parts["step"] == pytest.approx(slow[0] - slow[1]) and case.parts["rest"] == pytest.approx(0.5)


def test_reading_that_faster_steps_uncover_is_between_none_and_all_of_the_step(tmp_path):
    """A run whose steps hid reading does not say how long it took."""
    for number, reading_s in enumerate((0.005, 0.02, 0.045)):
        slow, fast = (simulated(reading_s / PER_BATCH, step_s, 1, 0.0) for step_s in (0.05, 0.0125))
        (case,) = what_if(run_of(tmp_path / f"{number}", *slow), Change(compute=4)).cases
        least = case.total_s - case.parts["evaluation"] - case.parts["rest"]
        assert least <= fast[0] * 1.1 and fast[0] <= (least + case.hidden_s) * 1.1


def test_more_ranks_share_steps_and_reading_or_steps_alone(tmp_path):
    run = run_of(tmp_path / "run", 10.0, 8.0, staging=6.0)
    keeps_up, shared = what_if(run, Change(ranks=2)).cases
    assert keeps_up.parts["staging"] == 3.0 and shared.parts["staging"] == 6.0
    assert [case.parts["step"] for case in (keeps_up, shared)] == pytest.approx([1.0, 1.0])
    assert keeps_up.parts["data_wait"] == pytest.approx(4.0)
    # Storage that gives no more to two ranks takes as long for an epoch, of which less is now hidden by steps.
    assert shared.parts["data_wait"] + shared.parts["step"] == pytest.approx(10.0, rel=0.01)


@pytest.mark.parametrize(
    ("ranks", "staged", "keeps_up", "shared"),
    [
        (8, {"mode": "replicate"}, 3.0, 6.0),  # each of eight nodes copies the data set, twice as much in all
        (2, {"mode": "replicate"}, 3.0, 1.5),
        (8, {"mode": "replicate", "read_once": True}, 3.0, 3.0),  # read once, but still written by each node
        (8, {"mode": "replicate", "target_filesystem": "lustre"}, 1.5, 3.0),  # one copy for all nodes
        (8, {"mode": "shard"}, 1.5, 3.0),
    ],
)
def test_staging_on_other_nodes_takes_what_each_of_them_copies(tmp_path, ranks, staged, keeps_up, shared):
    run = run_of(tmp_path / "run", 10.0, 8.0, staging=3.0)
    copied = Staging(files=80, bytes=4_000, seconds=3.0, **{"target_filesystem": "ext4"} | staged)
    of_four = {"ranks": 4, "nodes": 4, "staging": copied}
    run = replace(run, result=run.result.model_copy(update=of_four))
    answer = what_if(run, Change(ranks=ranks))
    assert [case.parts["staging"] for case in answer.cases] == [keeps_up, shared]
    assert any("every node copies" in note for note in answer.notes) == (keeps_up == 3.0)


def test_emulated_steps_get_faster_with_the_device_but_not_with_more_ranks(tmp_path):
    """They wait instead of computing, whatever their number of samples. Reading takes next to nothing here."""
    run = run_of(tmp_path / "run", 10.0, 0.0)
    waits = Emulation(step_s=10.0 / STEPS, eval_step_s=0.1)
    run = replace(run, result=run.result.model_copy(update={"emulation": waits}))
    (faster,) = what_if(run, Change(compute=4)).cases
    assert (faster.parts["step"], faster.parts["evaluation"]) == pytest.approx((10.0 / 4, 2.0 / 4))
    assert what_if(run, Change(ranks=2)).cases[0].parts["step"] == pytest.approx(10.0)


def test_changing_nothing_changes_nothing(tmp_path):
    run = read(make_run(tmp_path / "run"))
    (case,) = what_if(run, Change()).cases
    measured = run.result.breakdown_s
    assert case.total_s == pytest.approx(sum(measured.values())) and case.hidden_s >= 0
    for part in ("staging", "data_wait", "rest"):
        assert case.parts[part] == pytest.approx(measured[part], abs=1e-6)


def test_what_cannot_be_recomputed_is_refused(tmp_path):
    run = run_of(tmp_path / "run", 10.0, 8.0)
    for folder, reason in (
        (replace(run, config=None), "config.toml"),
        (replace(run, result=None), "finished run"),
        (replace(run, result=run.result.model_copy(update={"breakdown_s": None})), "finished run"),
    ):
        with pytest.raises(UserError, match=reason):
            what_if(folder, Change(storage=2))
    with pytest.raises(UserError, match="must be a multiple of 7"):
        what_if(run, Change(ranks=7))


def test_factors_are_read_as_they_are_written():
    assert parse("storage=2x,ranks=4") == Change(storage=2, ranks=4)
    assert parse("compute=1.5, storage=3") == Change(storage=3, compute=1.5)
    for text in (
        "",
        "storage",
        "storage=0.5x",
        "ranks=0",
        "ranks=2.5",
        "storage=2,storage=3",
        "disk=2x",
        "storage=nan",
    ):
        with pytest.raises(UserError, match="--what-if"):
            parse(text)
