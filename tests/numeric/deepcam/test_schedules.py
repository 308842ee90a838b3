"""The rate of every update, against PyTorch's schedulers and against the reference's way of stepping."""

import json
import math
from importlib import resources

import pytest
import torch

from mlhpc.benchmarks.load import load, presets
from mlhpc.common.training.schedules import step_learning_rate

BASE, STEPS = 0.004, 60


def torch_rates(scheduler):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=BASE)
    stepped, rates = scheduler(optimizer), []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        stepped.step()
    return rates


def chained(warmup, factor, after):
    """Each rate from the one before it, as mlcommons/hpc's schedulers go; ``after(rate, k)`` past warm-up."""
    rates = []
    for step in range(STEPS):
        if step < warmup:
            rates.append(BASE * (step / warmup if factor == 1 else (factor - 1) * step / warmup + 1))
        else:
            rates.append(after(rates[-1] if rates else BASE, step - warmup))
    return rates


def test_multistep_is_pytorchs():
    expected = torch_rates(lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [5, 9, 40], 0.1))
    ours = [step_learning_rate(s, base=BASE, milestones=[5, 9, 40], decay_rate=0.1) for s in range(STEPS)]
    assert ours == pytest.approx(expected, rel=1e-12)


def test_cosine_annealing_is_pytorchs_also_after_its_end():
    expected = torch_rates(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 17, 1e-4))
    kind = {"schedule": "cosine_annealing", "t_max": 17, "eta_min": 1e-4}
    assert [step_learning_rate(s, base=BASE, **kind) for s in range(STEPS)] == pytest.approx(
        expected, rel=1e-9
    )


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_warm_up_then_multistep_is_the_references(factor):
    milestones = [5, 20, 30]  # the first lies within warm-up
    expected = chained(10, factor, lambda rate, k: rate * 0.1 if k + 10 in milestones else rate)
    kind = {"warmup_steps": 10, "warmup_factor": factor, "milestones": milestones, "decay_rate": 0.1}
    ours = [step_learning_rate(s, base=BASE, **kind) for s in range(STEPS)]
    assert ours == pytest.approx(expected, rel=1e-12)
    assert max(ours) < BASE * factor  # one step short of the top, as the reference


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_warm_up_then_cosine_annealing_is_the_references(factor):
    t_max, eta_min = 15, 1e-4

    def after(rate, k):
        if k == 0:
            return rate
        if (k - 1 - t_max) % (2 * t_max) == 0:
            return rate + (BASE - eta_min) * (1 - math.cos(math.pi / t_max)) / 2
        ratio = (1 + math.cos(math.pi * k / t_max)) / (1 + math.cos(math.pi * (k - 1) / t_max))
        return ratio * (rate - eta_min) + eta_min

    kind = {"schedule": "cosine_annealing", "t_max": t_max, "eta_min": eta_min}
    ours = [
        step_learning_rate(s, base=BASE, warmup_steps=10, warmup_factor=factor, **kind) for s in range(STEPS)
    ]
    assert ours == pytest.approx(chained(10, factor, after), rel=1e-9)


def test_steps_count_from_zero():
    with pytest.raises(ValueError, match="from 0"):
        step_learning_rate(-1, base=BASE)


def test_the_closed_presets_are_the_published_convergence_points():
    """Every closed preset's settings stand in mlperf-logging's reference convergence points."""
    points = {}
    for ruleset in ("hpc_1.0.0", "hpc_2.0.0"):
        folder = resources.files("mlperf_logging.rcp_checker").joinpath(ruleset)
        for point in json.loads(folder.joinpath("rcps_deepcam.json").read_text()).values():
            points[point["BS"], point["Hyperparams"]["scheduler_type"]] = point["Hyperparams"]
    ours = [load("deepcam", name).hyperparameters.logged() for name in presets("deepcam") if "closed" in name]
    assert {(o["global_batch_size"], o["scheduler_type"]) for o in ours} == set(points)
    for preset in ours:
        point = points[preset["global_batch_size"], preset["scheduler_type"]]
        for key in preset.keys() & point.keys():
            # Some points have their numbers as text.
            assert preset[key] == type(preset[key])(point[key]), key
