"""Pooling and conversion of counts as Triton kernels, against PyTorch in float64, on the device that the argument
names: on ``cpu`` by Triton's interpreter."""

import sys

import torch
import torch.nn.functional as F

from mlhpc.benchmarks.cosmoflow import Network
from mlhpc.cosmoflow.network import LEAK
from mlhpc.cosmoflow.pytorch import model
from mlhpc.cosmoflow.pytorch.model import CosmoFlowNet, _Pooled

torch.set_default_device(sys.argv[1])
last = torch.channels_last_3d
torch.manual_seed(0)


def close(ours, theirs, tolerance):
    error = (ours.double() - theirs).norm() / theirs.norm()
    assert error < tolerance, (float(error), tolerance)


def main():
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    for channels, sides, dtype, tolerance in (
        (16, (4, 6, 8), torch.float32, 1e-6),
        (72, (2, 4, 4), torch.float16, 1e-3),
        (72, (2, 4, 4), torch.bfloat16, 8e-3),
    ):
        x = torch.randn(2, channels, *sides).to(dtype).to(memory_format=last)
        x[0, :, :2] = 0.5  # the first of equal voxels gets the gradient
        x.requires_grad_()
        bias = torch.randn(channels, requires_grad=True)
        wide = [each.detach().double().requires_grad_() for each in (x, bias)]
        expected = F.leaky_relu(F.max_pool3d(wide[0], 2) + wide[1].view(-1, 1, 1, 1), LEAK)
        y = _Pooled.apply(x, bias)
        gradient = torch.randn_like(y)
        y.backward(gradient)
        expected.backward(gradient.double())
        close(y, expected.detach(), tolerance)
        close(x.grad, wide[0].grad, tolerance)
        close(bias.grad, wide[1].grad, 1e-6)
        assert torch.equal(x.grad != 0, wide[0].grad != 0)
    assert (
        _Pooled.apply(torch.full((1, 8, 2, 2, 2), torch.nan).to(memory_format=last), torch.zeros(8))
        .isnan()
        .all()
    )

    # The whole network takes them, and is the same function.
    network = Network(conv_layers=2, dense_units=(8,), input_mean=(1.0,) * 4, input_spread=(2.0,) * 4)
    net = CosmoFlowNet(network, (16, 16, 16, 4), dropout=0.0).to(memory_format=last)
    counts, results, called = torch.randint(0, 300, (2, 16, 16, 16, 4), dtype=torch.int16), [], []
    pooled = _Pooled.apply
    model._Pooled.apply = lambda *given: called.append(1) or pooled(*given)
    for fused in (True, False):
        model.run_on = lambda _, fused=fused: fused
        net.zero_grad()
        net(counts).square().sum().backward()
        results.append([weight.grad.clone() for weight in net.parameters()])
    assert len(called) == 2
    for ours, theirs in zip(*results, strict=True):
        close(ours, theirs.double(), 1e-4)
    print("equal")


main()
