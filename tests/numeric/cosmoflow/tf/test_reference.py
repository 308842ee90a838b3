"""CosmoFlow's network, loss, optimizer and metric, against recorded results of the MLPerf HPC reference."""

import json
from pathlib import Path

import numpy as np
import pytest

from mlhpc.benchmarks import load
from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.cosmoflow.tf.model import build_model
from mlhpc.cosmoflow.tf.step import log_counts, make_eval_step, make_optimizer, make_train_step

RECORDED = json.loads((Path(__file__).parents[3] / "data" / "reference" / "cosmoflow.json").read_text())


def samples(number, shape, seed):
    """Counts whose mean varies from place to place: where it does not, the largest of eight voxels is a matter of
    rounding, and with it the voxel that a gradient flows to."""
    rng = np.random.RandomState(seed)
    mean = np.exp(1.5 * rng.standard_normal((number, *(side // 4 for side in shape[:3]), shape[3])))
    for axis in (1, 2, 3):
        mean = mean.repeat(4, axis)
    x = rng.poisson(5 * mean).astype(np.int16)
    return x, rng.uniform(-1, 1, (number, 4)).astype(np.float32)


def filled(case):
    """Our network with the weights that the reference had: same shapes in the same order."""
    network = Network(conv_filters=4, conv_kernel=case["kernel"], dense_units=(16, 8))
    model = build_model(network, tuple(case["shape"]), dropout=0.0, weight_decay=case["l2"])
    rng, weights = np.random.RandomState(5), []
    for weight in model.get_weights():
        deviation = np.sqrt(1 / np.prod(weight.shape[:-1])) if weight.ndim > 1 else 0.1
        weights.append((rng.standard_normal(weight.shape) * deviation).astype(np.float32))
    model.set_weights(weights)
    return model


CASES = pytest.mark.parametrize(
    "case", RECORDED["networks"], ids=lambda case: f"kernel {case['kernel']}, L2 {case['l2']}"
)


@CASES
def test_predictions_and_metric_equal_the_references(case):
    model = filled(case)
    x, y = samples(6, case["shape"], 100)
    logarithms = log_counts(x).numpy()
    assert logarithms.astype(np.float64).sum() == pytest.approx(case["log_sum"], rel=1e-7)
    np.testing.assert_allclose(
        np.ravel(model(logarithms)), np.array(case["prediction"]), rtol=1e-5, atol=1e-5
    )
    evaluate = make_eval_step(model)
    sums = [evaluate(x[part], y[part]) for part in (slice(0, 4), slice(4, 6))]
    error = sum(float(s) for s, _ in sums) / sum(int(count) for _, count in sums)
    assert error == pytest.approx(case["mean_absolute_error"], rel=1e-6)


@CASES
def test_three_steps_of_sgd_at_changing_rates_equal_the_references(case):
    """Momentum, L2 losses of the dense layers but the last, and how the rate enters the momentum.

    Each tensor within 0.5% of the distance that it moved: where two voxels are equal but for rounding, the
    gradient flows to one or the other.
    """
    model = filled(case)
    start = [weight.astype(np.float64) for weight in model.get_weights()]
    optimizer = make_optimizer(load.load("cosmoflow", "closed").hyperparameters, "float32")
    step = make_train_step(model, optimizer)
    for number, recorded in enumerate(case["steps"]):
        optimizer.learning_rate = recorded["rate"]
        loss = float(step(*samples(4, case["shape"], 200 + number)))
        assert loss == pytest.approx(recorded["loss"], rel=1e-4)
        for ours, before, theirs in zip(model.get_weights(), start, recorded["weights"], strict=True):
            assert list(ours.shape) == theirs["shape"]
            exact = ours.astype(np.float64)
            far, long = np.linalg.norm(exact - before), np.linalg.norm(exact)
            assert exact.sum() == pytest.approx(theirs["sum"], abs=0.005 * far * np.sqrt(exact.size))
            assert (exact**2).sum() == pytest.approx(theirs["square"], abs=0.005 * far * 2 * long)
            np.testing.assert_allclose(exact.ravel()[:3], theirs["first"], atol=0.005 * far)


@pytest.mark.parametrize("kernel", [2, 3])
def test_the_official_network_has_the_references_number_of_parameters(kernel):
    model = build_model(Network(conv_kernel=kernel), (128, 128, 128, 4))
    assert model.count_params() == RECORDED["parameters"][str(kernel)]
