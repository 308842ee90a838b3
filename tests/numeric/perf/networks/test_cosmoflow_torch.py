"""CosmoFlow's list of layers against the PyTorch model, traced on the meta device."""

from functools import partial

import pytest
import torch
from helpers.torch_trace import trace

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
    with torch.device("meta"):
        model = CosmoFlowNet(run.network, run.data.sample_shape, dropout=0.5)
        x, y = torch.empty(BATCH, *run.data.sample_shape), torch.empty(BATCH, run.network.targets)
        found = trace(model, x, y, partial(training_loss, model=model, weight_decay=0.0))
    return network_of(run), model, found


def test_weights_and_flops_are_those_that_pytorch_counts(case):
    network, model, found = case
    assert network.parameters == sum(p.numel() for p in model.parameters())
    assert [BATCH * layer.forward_flops for layer in network if layer.forward_flops] == found.forward
    assert BATCH * (network.training_flops - network.forward_flops) == sum(found.backward)


def test_saved_activations_are_those_that_autograd_saves(case):
    network, _, found = case
    assert network.saved_bytes("float32", BATCH) == pytest.approx(sum(found.saved), rel=0.01)
