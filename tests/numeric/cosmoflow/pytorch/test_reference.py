"""The PyTorch network, loss, optimizer and metric, against what the MLPerf HPC reference gave when it was run."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from mlhpc.benchmarks import load
from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.common.pytorch.step import make_eval_step, make_scaler, make_train_step, set_rate
from mlhpc.cosmoflow import weights as neutral
from mlhpc.cosmoflow.pytorch.metric import absolute_error, training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.cosmoflow.pytorch.optimizer import make_optimizer

RECORDED = json.loads((Path(__file__).parents[3] / "data" / "reference" / "cosmoflow.json").read_text())
CASES = pytest.mark.parametrize(
    "case", RECORDED["networks"], ids=lambda case: f"kernel {case['kernel']}, L2 {case['l2']}"
)


def samples(number, shape, seed):
    """Counts whose mean varies from place to place: where it does not, the largest of eight voxels is a matter of
    rounding, and with it the voxel that a gradient flows to."""
    rng = np.random.RandomState(seed)
    mean = np.exp(1.5 * rng.standard_normal((number, *(side // 4 for side in shape[:3]), shape[3])))
    for axis in (1, 2, 3):
        mean = mean.repeat(4, axis)
    x = rng.poisson(5 * mean).astype(np.int16)
    return torch.from_numpy(x), torch.from_numpy(rng.uniform(-1, 1, (number, 4)).astype(np.float32))


def filled(case):
    """Our network with the weights that the reference had: same shapes in the same order."""
    network = Network(conv_filters=4, conv_kernel=case["kernel"], dense_units=(16, 8))
    model = CosmoFlowNet(network, tuple(case["shape"]), dropout=0.0)
    state = {name: weight.numpy() for name, weight in model.state_dict().items()}
    rng, weights = np.random.RandomState(5), []
    for weight in neutral.from_pytorch(state, network):
        deviation = np.sqrt(1 / np.prod(weight.shape[:-1])) if weight.ndim > 1 else 0.1
        weights.append((rng.standard_normal(weight.shape) * deviation).astype(np.float32))
    converted = neutral.to_pytorch(weights, network)
    model.load_state_dict({name: torch.from_numpy(weight) for name, weight in converted.items()})
    return model, network


@CASES
def test_predictions_and_metric_are_the_references(case):
    model, _ = filled(case)
    x, y = samples(6, case["shape"], 100)
    np.testing.assert_allclose(
        np.ravel(model(x).detach()), np.array(case["prediction"]), rtol=1e-5, atol=1e-5
    )
    evaluate = make_eval_step(model, absolute_error)
    sums = [evaluate(x[part], y[part]) for part in (slice(0, 4), slice(4, 6))]
    error = sum(float(s) for s, _ in sums) / sum(count for _, count in sums)
    assert error == pytest.approx(case["mean_absolute_error"], rel=1e-6)


@CASES
def test_three_steps_of_sgd_at_changing_rates_are_the_references(case):
    """Momentum, L2 losses of the dense layers but the last, and how the rate enters the momentum.

    Each tensor within 0.5% of the distance that it moved: where two voxels are equal but for rounding, the
    gradient flows to one or the other.
    """
    model, network = filled(case)

    def weights():
        return neutral.from_pytorch(
            {name: w.numpy().copy() for name, w in model.state_dict().items()}, network
        )

    start = [weight.astype(np.float64) for weight in weights()]
    optimizer = make_optimizer(load.load("cosmoflow", "closed").hyperparameters, model.parameters())
    loss_of = partial(training_loss, model=model, weight_decay=case["l2"])
    step = make_train_step(model, loss_of, optimizer, make_scaler("float32", torch.device("cpu")))
    for number, recorded in enumerate(case["steps"]):
        set_rate(optimizer, recorded["rate"])
        loss = float(step(*samples(4, case["shape"], 200 + number)))
        assert loss == pytest.approx(recorded["loss"], rel=1e-4)
        for ours, before, theirs in zip(weights(), start, recorded["weights"], strict=True):
            assert list(ours.shape) == theirs["shape"]
            exact = ours.astype(np.float64)
            far, long = np.linalg.norm(exact - before), np.linalg.norm(exact)
            assert exact.sum() == pytest.approx(theirs["sum"], abs=0.005 * far * np.sqrt(exact.size))
            assert (exact**2).sum() == pytest.approx(theirs["square"], abs=0.005 * far * 2 * long)
