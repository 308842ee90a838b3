"""The settings that follow from a choice, and the choices that are possible."""

import pytest

from mlhpc.benchmarks import load, rules
from mlhpc.errors import UserError
from mlhpc.tune.space import Axes, Config, Space

BENCHMARKS = ("cosmoflow", "deepcam", "resnet50")


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_default_is_the_preset(benchmark):
    space = Space(benchmark, "smoke", [], Axes())
    assert space.settings_of(space.default) == []
    assert space.run_of(space.default) == load.load(benchmark, "smoke")


def test_epochs_of_cosmoflow_follow_the_schedule_and_its_rate_the_batch():
    space = Space("cosmoflow", "closed", [], Axes())
    run = space.run_of(Config(256, 1, 0.5, "0.5"))
    own = run.hyperparameters
    assert own.global_batch_size == 256 and own.opt_learning_rate_decay_boundary_epochs == (16, 32)
    assert own.opt_base_learning_rate == pytest.approx(0.001 * 0.5 * 2)  # the root of 256 / 64
    assert (run.training.max_epochs, own.opt_learning_rate_warmup_epochs) == (64, 4)


def test_steps_of_deepcam_pass_the_same_samples_at_every_batch_size():
    space = Space("deepcam", "closed-512", [], Axes())
    own = space.run.hyperparameters
    scaled = space.run_of(Config(2048, 1)).hyperparameters
    assert [4 * step for step in scaled.scheduler_milestones] == list(own.scheduler_milestones)
    assert 4 * scaled.scheduler_lr_warmup_steps == own.scheduler_lr_warmup_steps > 0


def test_resnet50_changes_the_rate_of_its_optimizer_only():
    space = Space("resnet50", "smoke", [], Axes())
    run = space.run_of(Config(64, 1, 2.0, "1.4")).hyperparameters
    assert run.sgd_opt_base_learning_rate == pytest.approx(0.02 * 2 * 2**0.5, rel=0.01)
    assert run.lars_opt_base_learning_rate == space.run.hyperparameters.lars_opt_base_learning_rate
    assert run.sgd_opt_learning_rate_decay_steps == 500 / 2 * 1.4


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_the_starts_are_the_published_points(benchmark):
    """Value by value: the reference's logs cannot be reached by other hyperparameters."""
    space = Space(benchmark, "closed", [], Axes(ranks=(2, 8)))
    starts = space.starts(None)
    assert len(starts) >= 4 and {start.ranks for start in starts} == {8}
    for start in starts:
        published = load.load(benchmark, start.schedule)
        run = space.run_of(start)
        assert run.hyperparameters == published.hyperparameters
        assert run.training.max_epochs == published.training.max_epochs


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_what_is_tuned_from_a_closed_preset_is_closed(benchmark):
    space = Space(benchmark, "closed", [], Axes(ranks=(1, 8)))
    assert len(space.candidates) > 1000
    for config in space.candidates[::97]:
        found = rules.findings(rules.RunContext(space.run_of(config)))
        assert not [finding for finding in found if finding.severity == "error"], config


def test_a_machine_orders_the_starts_by_predicted_time():
    space = Space("cosmoflow", "closed", [], Axes(ranks=(8, 64)))
    starts = space.starts("dgx-a100")
    assert len(starts) == len({start.schedule for start in starts}) > 2
    assert starts[0].batch >= 128  # few samples on each of 64 GPUs are slow
    with pytest.raises(UserError, match="machine"):
        space.starts("nowhere")


def test_smoke_presets_have_no_published_points():
    assert Space("cosmoflow", "smoke", [], Axes()).starts(None) == []


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (Axes(batch=(16, 10**6)), "--batch 1000000: .*16384 training samples"),
        (Axes(batch=(16, 25), ranks=(1, 3)), "--ranks 3: .*multiple of 3"),
        (Axes(schedule=("fast",)), "--schedule fast: neither a factor, such as 0.7, nor a published preset"),
        (Axes(schedule=("closed-512",)), "--schedule closed-512: .*no preset"),
        (Axes(schedule=("0",)), "--schedule 0: factors must be from 0.01"),
        (Axes(schedule=("nan",)), "--schedule nan: factors must be from 0.01"),
        (Axes(rate=(1.03, 1.1)), "--rate 1.03,1.1 contains none of the candidate rates"),
        (Axes(ranks=(3,)), "must be a multiple of 3"),
    ],
)
def test_a_value_that_is_never_possible_is_refused(axes, said):
    with pytest.raises(UserError, match=said):
        Space("cosmoflow", "smoke", [], axes)


def test_emulated_steps_are_not_tuned():
    with pytest.raises(UserError, match="tuning requires training"):
        Space("cosmoflow", "smoke", ["emulation.step_s=0.1"], Axes())
