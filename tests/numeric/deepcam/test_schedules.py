"""The rate of every update, against the reference's schedulers as they ran, published logs and PyTorch's own."""

import json
from importlib import resources
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from mlhpc.benchmarks.load import load, presets
from mlhpc.common.training.schedules import StepSchedule

DATA = Path(__file__).parents[2] / "data" / "reference"
RECORDED = json.loads((DATA / "deepcam_schedules.json").read_text())
PUBLISHED = json.loads((DATA / "deepcam_published_rates.json").read_text())["logs"]


def rate(update, settings):
    """Our rate under ``settings``, which have the names of the logging rules."""
    names = {
        "opt_lr": "base",
        "scheduler_type": "schedule",
        "scheduler_lr_warmup_steps": "warmup_steps",
        "scheduler_lr_warmup_factor": "warmup_factor",
    }
    options = {names.get(key, key.removeprefix("scheduler_")): value for key, value in settings.items()}
    return StepSchedule(**options).rate(update)


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: case["case"])
def test_every_rate_equals_the_recorded_rate_of_the_reference(case):
    ours = [rate(update, case["settings"]) for update in case["updates"]]
    assert ours == pytest.approx(case["rates"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "case",
    [case for case in RECORDED["cases"] if "changes_after_warm_up" in case],
    ids=lambda case: case["case"],
)
def test_the_rate_decays_at_the_same_updates_as_in_the_reference(case):
    settings = case["settings"]
    ours = [rate(update, settings) for update in range(case["updates"][-1] + 1)]
    after = range(settings["scheduler_lr_warmup_steps"] + 1, len(ours))
    assert [update for update in after if ours[update] != ours[update - 1]] == case["changes_after_warm_up"]


@pytest.mark.parametrize("name", [name for name in presets("deepcam") if "closed" in name])
def test_closed_presets_have_the_settings_of_the_recorded_reference_runs(name):
    (case,) = [case for case in RECORDED["cases"] if case["case"] == name]
    chosen = load("deepcam", name).hyperparameters.model_dump(mode="json")
    assert {key: chosen[key] for key in case["settings"]} == case["settings"]


@pytest.mark.parametrize("case", RECORDED["round_1_0"], ids=lambda case: case["case"])
def test_the_reference_of_round_1_0_differs_by_one_step_of_warm_up_and_decays_at_the_same_update(case):
    """As stated in docs/reference/deepcam.md."""
    settings = case["settings"]
    step = settings["opt_lr"] / settings["scheduler_lr_warmup_steps"]
    for update, theirs in zip(case["updates"], case["rates"], strict=True):
        assert abs(rate(update, settings) - theirs) <= step * (1 + 1e-9)


@pytest.mark.parametrize("published", PUBLISHED, ids=lambda published: published["log"])
def test_published_logs_decay_at_our_updates_and_warm_up_within_two_steps(published):
    """One step behind us in rounds 0.7 and 1.0, two ahead in NVIDIA's own code of round 2.0; all reach the base
    rate. A decay in another place would be a difference of at least 0.8 of the base rate."""
    settings = published["settings"]
    warmup = settings["scheduler_lr_warmup_steps"]
    tolerance = 2.001 * settings["opt_lr"] / warmup if warmup else 0.0
    for step_num, logged in published["rates"]:
        assert rate(step_num - 1, settings) == pytest.approx(logged, rel=1e-6, abs=tolerance)
    values = [value for _, value in published["rates"]]
    assert any(later < before for before, later in pairwise(values))  # or the table would show no decay


def test_cosine_annealing_without_warm_up_equals_pytorchs_even_after_its_end():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.004)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 17, 1e-4)
    schedule = StepSchedule(base=0.004, schedule="cosine_annealing", t_max=17, eta_min=1e-4)
    for update in range(60):
        assert schedule.rate(update) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        scheduler.step()


def test_steps_count_from_zero():
    with pytest.raises(ValueError, match="from 0"):
        StepSchedule(base=0.1).rate(-1)


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
