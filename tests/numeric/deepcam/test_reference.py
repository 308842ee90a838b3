"""DeepCAM's network, loss and metric, against recorded results of the MLPerf HPC reference."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mlhpc.benchmarks.deepcam import Network
from mlhpc.deepcam.metric import iou, weighted_cross_entropy
from mlhpc.deepcam.model import build_model

RECORDED = json.loads((Path(__file__).parents[2] / "data" / "reference" / "deepcam_network.json").read_text())


@pytest.fixture(scope="module")
def model():
    """The whole network in float64, with the weights that the reference had: tensor after tensor in the order of
    a forward pass, which is the order of our parameters."""
    model = build_model(Network(), 16).double()
    parameters = list(model.parameters())
    assert [p.numel() for p in parameters] == [math.prod(shape) for _, shape in RECORDED["tensors"]]
    with torch.no_grad():
        for number, (parameter, (name, shape)) in enumerate(
            zip(parameters, RECORDED["tensors"], strict=True)
        ):
            drawn = np.random.RandomState(1000 + number).standard_normal(shape)
            if len(shape) > 1:
                drawn *= np.sqrt(2 / np.prod(shape[1:]))
            else:
                drawn = 1 + 0.1 * drawn if name.endswith("weight") else 0.1 * drawn
            parameter.copy_(torch.from_numpy(drawn).reshape(parameter.shape))
    return model


def assert_equal(ours, theirs):
    ours = ours.detach()
    every = theirs["every"]
    torch.testing.assert_close(
        ours[:, :, ::every, ::every].reshape(-1), torch.tensor(theirs["values"], dtype=torch.float64)
    )
    assert float((ours**2).sum()) == pytest.approx(theirs["square"], rel=1e-9)
    assert float(ours.sum()) == pytest.approx(theirs["sum"], rel=1e-7)


def test_logits_loss_and_gradients_of_all_tensors_equal_the_references(model):
    assert sum(p.numel() for p in model.parameters()) == RECORDED["parameters"]
    x = torch.from_numpy(np.random.RandomState(1).standard_normal((2, 16, 32, 64)))
    y = torch.from_numpy(np.random.RandomState(2).choice(3, (2, 32, 64), p=[0.8, 0.1, 0.1]))
    model.train()
    logits = model(x)
    assert_equal(logits, RECORDED["logits"])
    loss = weighted_cross_entropy(logits, y)
    assert loss.item() == pytest.approx(RECORDED["loss"], rel=1e-6)
    loss.backward()
    norms = [float(parameter.grad.norm()) for parameter in model.parameters()]
    assert norms == pytest.approx(RECORDED["gradient_norms"], rel=1e-5)
    assert iou(logits, y).mean().item() == pytest.approx(RECORDED["iou"], rel=1e-6)
    # The pass above was the first to move batch norm's running statistics, as in the reference.
    model.eval()
    with torch.no_grad():
        assert_equal(model(x), RECORDED["evaluation"])


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: f"seed {case['seed']}")
def test_metric_and_loss_equal_the_references(case):
    rng = np.random.RandomState(case["seed"])
    truth = rng.choice(3, (3, 9, 11), p=[0.9, 0.02, 0.08])
    guess = np.where(rng.uniform(size=truth.shape) < 0.7, truth, rng.choice(3, truth.shape))
    truth[0] = guess[0] = 0
    logits = torch.from_numpy(rng.standard_normal((3, 3, 9, 11))).float()
    truth = torch.from_numpy(truth)
    assert iou(torch.from_numpy(guess), truth).mean().item() == pytest.approx(case["iou"], rel=1e-6)
    assert weighted_cross_entropy(logits, truth).item() == pytest.approx(case["loss"], rel=1e-6)
