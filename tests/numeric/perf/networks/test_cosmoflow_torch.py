"""CosmoFlow's list of layers against the PyTorch model, traced on fake memory (autocast has no meta device)."""

import math
from functools import partial

import pytest
import torch
from helpers.torch_trace import trace
from torch._subclasses.fake_tensor import FakeTensorMode

from mlhpc.benchmarks.load import load
from mlhpc.cosmoflow.pytorch.metric import training_loss
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet
from mlhpc.perf.networks.registry import network_of

BATCH = 2
RUNS = [("smoke",), ("mini",), ("closed",), ("v07",), ("closed", "data.sample_shape=[32,96,64,3]")]


@pytest.fixture(params=RUNS, ids=" ".join)
def case(request):
    preset, *settings = request.param
    run = load("cosmoflow", preset, ["training.framework=pytorch", "division=open", *settings])
    with FakeTensorMode():
        model = CosmoFlowNet(run.network, run.data.sample_shape, dropout=0.5)
        x = torch.empty(BATCH, *run.data.sample_shape, dtype=torch.int16)
        y = torch.empty(BATCH, run.network.targets)
        traced = trace(model, x, y, partial(training_loss, model=model, weight_decay=0.0))
    return network_of(run), model, traced, run.network.conv_kernel


def test_weights_and_flops_are_those_that_pytorch_counts(case):
    network, model, traced, _ = case
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert [BATCH * layer.forward_flops for layer in network if layer.forward_flops] == traced.forward
    assert BATCH * (network.training_flops - network.forward_flops) == sum(traced.backward)


def test_saved_activations_are_those_that_autograd_saves(case):
    """Beside the network's input, which is the logarithm of the counts given, with zeros at the end of each side
    for an even kernel."""
    network, _, traced, kernel = case
    *sides, channels = network.input
    given = 4 * BATCH * channels * math.prod(side + (kernel % 2 == 0) for side in sides)
    assert given in traced.saved
    assert network.saved_bytes("float32", BATCH) == pytest.approx(sum(traced.saved) - given, rel=0.01)
