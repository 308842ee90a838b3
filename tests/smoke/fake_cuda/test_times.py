"""Known times of kernels come out of a run's record."""

import json

import pytest
from smoke.fake_cuda.conftest import on_device

STEPS, EVALUATIONS = 3, 3  # of an epoch: 13 samples in batches of 4, 5 in batches of 2


def test_times_of_steps_and_evaluations_are_those_of_the_kernels(sets, tmp_path):
    """The device's own times, which do not depend on how busy this machine is."""
    kernels = {
        "kernel_us nll_loss2d_forward": 1e6,
        "kernel_us ArgMax": 0.5e6,
    }  # one a step, one an evaluation
    done = on_device(tmp_path, sets["deepcam"], "deepcam", "training.max_epochs=1", changes=kernels)
    (epoch,) = done.result()["epochs"]
    events = map(json.loads, (done.out / "events.rank0.jsonl").read_text().splitlines())
    steps = {event["name"]: event for event in events if event["event"] == "steps"}
    assert steps["train"]["count"] == STEPS and steps["eval"]["count"] == EVALUATIONS
    assert steps["train"]["p50"] == pytest.approx(1.0, rel=0.05)
    assert steps["eval"]["p50"] == pytest.approx(0.5, rel=0.05)
    assert epoch["train_s"] >= 1.0 * STEPS and epoch["eval_s"] >= 0.5 * EVALUATIONS
