"""Known times of kernels, copies and reads come out of a run's record."""

import json

import pytest
from helpers.slow_reads import library
from smoke.fake_cuda.conftest import on_device

BUSY_S = 0.25
"""What a step may take longer on a busy machine; docs/evidence/performance.md has the times of an idle one."""
STEPS, EVALUATIONS = 3, 3  # of an epoch and rank: 13 samples in batches of 4, 5 in batches of 2


def kernels(step_s, evaluation_s=0.5):
    """One launch a step, and one an evaluation."""
    return {"kernel_us nll_loss2d_forward": step_s * 1e6, "kernel_us ArgMax": evaluation_s * 1e6}


@pytest.fixture(scope="module")
def slow_reads():
    return {"LD_PRELOAD": str(library())}


def as_known(found_s, known_s):
    """Within 5%, and what a busy machine adds."""
    return 0.95 * known_s <= found_s <= 1.05 * known_s + BUSY_S


def steps_of(done, rank=0):
    """The times of training steps and evaluations, as the run's record has them."""
    events = map(json.loads, (done.out / f"events.rank{rank}.jsonl").read_text().splitlines())
    return {event["name"]: event for event in events if event["event"] == "steps"}


@pytest.mark.parametrize("ranks, step_s", [(1, 1.0), (2, 4.0)])
def test_times_of_steps_and_evaluations_are_those_of_the_kernels(sets, tmp_path, ranks, step_s):
    """The device's own times. Of two ranks each has its own device; their collectives are polled by threads, which
    takes milliseconds on a busy machine."""
    changes = kernels(step_s) | {"devices": ranks}
    words = ("--ranks", ranks) if ranks > 1 else ()
    done = on_device(
        tmp_path, sets["deepcam"], "deepcam", "training.max_epochs=1", words=words, changes=changes
    )
    (epoch,) = done.result()["epochs"]
    for rank in range(ranks):
        steps = steps_of(done, rank)
        assert steps["train"]["count"] == STEPS
        assert as_known(steps["train"]["p50"], step_s)
        assert as_known(steps["eval"]["p50"], 0.5)
    assert epoch["train_s"] >= step_s * STEPS and epoch["eval_s"] >= 0.5 * (EVALUATIONS // ranks)


def test_a_copy_that_takes_longer_than_the_step_is_the_step(sets, tmp_path):
    """Batches are copied while the step before computes: of the two the longer one counts."""
    x, y = 4 * 32 * 48 * 16 * 4, 4 * 32 * 48  # bytes of a batch
    changes = {"link_bytes_per_s": (x + y) / 1.0}
    done = on_device(tmp_path, sets["deepcam"], "deepcam", "training.max_epochs=1", changes=changes)
    steps = steps_of(done)["train"]
    assert steps["count"] == STEPS and as_known(steps["p50"], 1.0)


def test_the_gap_before_a_batch_that_is_read_slowly_is_data_wait(sets, tmp_path, slow_reads):
    """One thread reads the four samples of a batch in 3.2 s, the step before takes 2 s: the device is idle for
    1.2 s before each of the next steps."""
    rules = {"SLOW_READS": f"open:{sets['deepcam']}/train/=800", "SLOW_READS_LOG": str(tmp_path / "log")}
    chosen = ("loading.workers=1", "loading.prefetch=1", "training.max_epochs=1")
    preload = slow_reads | rules
    done = on_device(
        tmp_path / "run", sets["deepcam"], "deepcam", *chosen, changes=kernels(2.0), preload=preload
    )
    steps = steps_of(done)["train"]
    (epoch,) = done.result()["epochs"]
    assert as_known(steps["p50"], 2.0)
    assert epoch["data_wait_s"] >= 0.95 * (3.2 + 2 * 1.2)  # a file may be opened more than once
