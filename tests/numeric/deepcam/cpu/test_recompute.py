"""Recomputation in the backward pass: the same gradients, and memory that is really freed."""

import copy
import gc

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from mlhpc.common.pytorch.batchnorm import BatchNorm
from mlhpc.deepcam.cpu.convolution import CpuConv3x3, CpuDeconvolution, CpuSeparable
from mlhpc.deepcam.cpu.kernels import use_cpu_kernels
from mlhpc.deepcam.cpu.recompute import RecomputeSequential
from mlhpc.deepcam.model import Block


def modules():
    """One of each kind that follows a batch norm in the network; a block takes its input twice."""
    torch.manual_seed(1)
    layers = nn.ModuleList(
        [
            nn.Conv2d(8, 16, 3, padding=1, bias=False),
            BatchNorm(16, relu=True),
            Block(16, [24, 24], stride=2),
            CpuSeparable(24, 32, dilation=2),
            BatchNorm(32, relu=True),
            CpuConv3x3(32, 32, dilation=6),
            BatchNorm(32),
            CpuConv3x3(32, 16),
            BatchNorm(16, relu=True),
            CpuDeconvolution(16, 16),
            BatchNorm(16, relu=True),
            nn.Conv2d(16, 4, 1),
        ]
    )
    use_cpu_kernels(layers)
    return list(layers)


def passed(network, bfloat16):
    torch.manual_seed(2)
    x = torch.randn(2, 8, 16, 24).contiguous(memory_format=torch.channels_last).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        y = network(x)
    y.float().square().mean().backward()
    return [y, x.grad, *(weight.grad for weight in network.parameters()), *network.buffers()]


@pytest.mark.parametrize("bfloat16", [False, True])
def test_gradients_are_equal_bit_for_bit(bfloat16):
    kept = nn.Sequential(*modules())
    made_again = RecomputeSequential(*copy.deepcopy(list(kept)))
    for ours, theirs in zip(passed(made_again, bfloat16), passed(kept, bfloat16), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


class Turned(nn.Conv2d):
    """Looks at the same memory in another way."""

    def forward(self, input):
        return super().forward(input.transpose(2, 3))


@pytest.mark.parametrize("module", [nn.ELU(inplace=True), nn.ReLU(inplace=True), Turned(8, 8, 3)], ids=repr)
def test_an_input_modified_or_transposed_by_the_next_module_is_saved_normally(module):
    torch.manual_seed(4)
    layers = [nn.Conv2d(8, 8, 1), BatchNorm(8), module, nn.Conv2d(8, 4, 1)]
    layers[1].recompute = True
    x = torch.randn(2, 8, 8, 8)
    gradients = []
    for container in (RecomputeSequential, nn.Sequential):
        network = container(*copy.deepcopy(layers))
        network(x).square().sum().backward()
        gradients.append([weight.grad for weight in network.parameters()])
    torch.testing.assert_close(*gradients, rtol=0, atol=0)


def test_one_value_per_channel_is_refused_as_in_pytorch():
    for norm in (BatchNorm(4), nn.BatchNorm2d(4)):
        with pytest.raises(ValueError, match="value"):
            norm(torch.zeros(1, 4, 1, 1))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm_equals_pytorchs(relu, recompute):
    torch.manual_seed(3)
    ours, theirs = BatchNorm(8, relu=relu).double(), nn.BatchNorm2d(8).double()
    ours.recompute = recompute
    x = torch.randn(4, 8, 6, 10, dtype=torch.float64) * 3 + 1
    gradient = torch.randn_like(x)
    results = []
    for norm, activation in ((ours, nn.Identity()), (theirs, nn.ReLU() if relu else nn.Identity())):
        with torch.no_grad():
            norm.weight.copy_(torch.linspace(-1, 2, 8))
            norm.bias.copy_(torch.linspace(1, -1, 8))
        given = x.clone().requires_grad_()
        result = activation(norm(given))
        result.backward(gradient)
        kept = norm.state_dict()
        del kept["num_batches_tracked"]  # ours does not count, which would take a GPU a kernel
        results.append([result, given.grad, norm.weight.grad, norm.bias.grad, kept])
        results[-1].append(activation(norm.eval()(x)))
    torch.testing.assert_close(*results)


@pytest.mark.parametrize(("container", "freed"), [(RecomputeSequential, 5), (nn.Sequential, 1)])
def test_the_output_of_a_batch_norm_is_freed_after_the_next_module(container, freed):
    network = container(*modules())  # within the block there are chains, whatever is around it
    outputs = []
    for module in network:
        if isinstance(module, BatchNorm):
            module.register_forward_hook(
                lambda *args: outputs.append(StorageWeakRef(args[2].untyped_storage()))
            )
    gc.disable()  # by counting references alone: a cycle would hold the memory for many steps
    try:
        loss = network(torch.randn(2, 8, 16, 24)).mean()
        assert len(outputs) == 5
        assert sum(output.expired() for output in outputs) == freed
        loss.backward()
        del loss
        assert all(output.expired() for output in outputs)
    finally:
        gc.enable()
