"""The lists of layers of DeepCAM and ResNet-50 against the models themselves, traced on the meta device."""

from collections import Counter
from functools import cache

import pytest
import torch
from helpers.torch_trace import Trace, trace
from torch import nn

from mlhpc.benchmarks.deepcam import DeepCam
from mlhpc.benchmarks.load import load, presets
from mlhpc.benchmarks.resnet50 import ResNet50
from mlhpc.benchmarks.schema import Run
from mlhpc.deepcam.metric import weighted_cross_entropy
from mlhpc.deepcam.model import build_model as build_deepcam
from mlhpc.perf.networks.layer import Network
from mlhpc.perf.networks.registry import network_of
from mlhpc.resnet50.metric import cross_entropy
from mlhpc.resnet50.model import build_model as build_resnet50

BATCH = 2  # of samples: batch norm wants more than one value a channel
WEIGHTED = (nn.Conv2d, nn.ConvTranspose2d, nn.Linear, nn.BatchNorm2d)


def different_networks(benchmark: str) -> list[tuple[str, ...]]:
    """Of the presets those that differ in network or samples."""
    kinds: dict[object, str] = {}
    for preset in presets(benchmark):
        run = load(benchmark, preset)
        kinds.setdefault((run.network.model_copy(update={"parameters": None}), run.data.sample_shape), preset)
    return [(benchmark, preset) for preset in kinds.values()]


RUNS = [
    *different_networks("deepcam"),
    ("deepcam", "smoke", "data.sample_shape=[32,32,5]"),
    ("deepcam", "closed", "data.sample_shape=[384,560,16]", "network.middle_blocks=3"),
    *different_networks("resnet50"),
    ("resnet50", "closed", "data.sample_shape=[33,33,3]"),
    ("resnet50", "mini", "data.sample_shape=[288,288,3]", "network.width=1.5"),
    ("resnet50", "mini", "network.name=resnet101", "network.blocks=[]", "network.width=1.0"),
    ("resnet50", "mini", "network.name=alexnet", "data.sample_shape=[224,224,3]"),
    ("resnet50", "mini", "network.name=lenet", "data.sample_shape=[32,32,3]"),
    ("resnet50", "mini", "network.name=lenet", "data.sample_shape=[96,96,3]"),
]


@cache
def traced(arguments: tuple[str, ...]) -> tuple[Run, nn.Module, Trace]:
    benchmark, preset, *settings = arguments
    run = load(benchmark, preset, settings)
    rows, columns, channels = run.data.sample_shape
    with torch.device("meta"):
        x = torch.empty(BATCH, channels, rows, columns)
        if isinstance(run, DeepCam):
            model: nn.Module = build_deepcam(run.network, channels)
            y = torch.empty(BATCH, rows, columns, dtype=torch.uint8)
            return run, model, trace(model, x, y, lambda a, b: _weighted_cross_entropy(a, b))
        assert isinstance(run, ResNet50)
        model, y = build_resnet50(run.network), torch.empty(BATCH, dtype=torch.int64)
        return run, model, trace(model, x, y, cross_entropy)


def _weighted_cross_entropy(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return weighted_cross_entropy(logits, y)


@pytest.fixture(params=RUNS, ids=" ".join)
def case(request) -> tuple[Network, nn.Module, Trace]:
    run, model, trace = traced(request.param)
    return network_of(run), model, trace


def test_weights_are_those_of_the_model_layer_by_layer(case):
    network, model, trace = case
    ours = [
        (layer.parameters, (*layer.output[-1:], *layer.output[:-1]))
        for layer in network
        if layer.parameters and layer.name != "ASPP mean affine"
    ]
    theirs = [
        (sum(p.numel() for p in module.parameters()), out[1:])
        for module, _, out in trace.modules
        if isinstance(module, WEIGHTED)
    ]
    assert ours == theirs
    assert network.parameters == sum(p.numel() for p in model.parameters())


def test_forward_flops_are_those_that_pytorch_counts_operation_by_operation(case):
    network, _, trace = case
    assert [BATCH * layer.forward_flops for layer in network if layer.forward_flops] == trace.forward


def test_backward_flops_are_those_that_pytorch_counts_operation_by_operation(case):
    network, _, trace = case
    ours: list[int] = []
    for layer in network:
        flops = {part.name: part.flops for part in layer.passes}
        gradients = [BATCH * flops.get(f"{of} gradient", 0) for of in ("input", "weight")]
        # A dense layer has an operation for each gradient, a convolution one for both.
        ours += gradients if layer.kind == "dense" else [sum(gradients)]
    assert Counter(filter(None, ours)) == Counter(trace.backward)


def test_saved_activations_are_those_that_autograd_saves(case):
    network, _, trace = case
    assert network.saved_bytes("float32", BATCH) == pytest.approx(sum(trace.saved), rel=0.01)
