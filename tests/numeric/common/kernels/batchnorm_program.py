"""Batch norm with a sum and a ReLU as Triton kernels, against float64 of PyTorch, on the device that the
argument names: on ``cpu`` by Triton's interpreter."""

import itertools
import sys

import numpy
import torch
from triton.runtime import interpreter

from mlhpc.common.pytorch import batchnorm
from mlhpc.common.pytorch.batchnorm import BatchNorm
from mlhpc.deepcam import model

torch.set_default_device(sys.argv[1])
batchnorm._can_fuse = lambda x: True
last = torch.channels_last
torch.manual_seed(0)


def always(value):
    return lambda _: value


def drawn(*shape, dtype=torch.float32):
    return torch.randn(shape).to(dtype).to(memory_format=last)


def close(ours, theirs, tolerance):
    error = (ours.double() - theirs).norm() / theirs.norm()
    assert error < tolerance, (float(error), tolerance)


def check(channels, dtype, tolerance, relu, added):
    norm, truth = BatchNorm(channels, relu=relu), torch.nn.BatchNorm2d(channels).double()
    with torch.no_grad():
        for ours, theirs in ((norm.weight, truth.weight), (norm.bias, truth.bias)):
            theirs.copy_(ours.normal_())
    x = (2 * drawn(2, channels, 7, 37, dtype=dtype) + 30).detach().requires_grad_()  # far from zero
    z = drawn(2, channels, 7, 37, dtype=dtype).requires_grad_() if added else None
    wide = [None if each is None else each.detach().double().requires_grad_() for each in (x, z)]
    y, expected = norm(x, added=z), truth(wide[0])
    expected = expected + wide[1] if added else expected
    expected = expected.relu() if relu else expected
    gradient = drawn(*x.shape, dtype=dtype)
    y.backward(gradient)
    expected.backward(gradient.double())
    assert y.dtype == dtype and y.is_contiguous(memory_format=last)
    close(y, expected.detach(), tolerance)
    for ours, theirs in zip((x, z) if added else (x,), wide, strict=False):
        close(ours.grad, theirs.grad, tolerance)
    for name in ("running_mean", "running_var"):
        close(getattr(norm, name), getattr(truth, name), 1e-6)
    for name in ("weight", "bias"):
        close(getattr(norm, name).grad, getattr(truth, name).grad, 2e-6)


def main():
    for relu, added in itertools.product((False, True), repeat=2):
        check(16, torch.float32, 2e-6, relu, added)
        check(72, torch.float16, 1e-3, relu, added)
        check(72, torch.bfloat16, 8e-3, relu, added)

    # A block of the network takes the sum and the ReLU into its batch norm.
    for options in ({}, {"stride": 2}, {"closing": True, "relu": False}):
        block = model.Block(8, [8, 16 if options else 8], **options).to(memory_format=last)
        x, results = drawn(1, 8, 6, 6), []
        for fused in (True, False):
            batchnorm._can_fuse = always(fused)
            model.on_cpu = always(not fused)
            block.zero_grad()
            y = block(x)
            y.square().sum().backward()
            results.append([y.detach(), *(weight.grad.clone() for weight in block.parameters())])
        for ours, theirs in zip(*results, strict=True):
            close(ours, theirs.double(), 1e-5)

    # An activation that overflowed shows in its channel. A GPU's maximum drops NaN, the interpreter's does not.
    interpreter.InterpreterBuilder.create_maxnumf = lambda self, a, b: self.binary_op(a, b, numpy.fmax)
    batchnorm._can_fuse = always(True)
    for relu, added in itertools.product((False, True), repeat=2):
        x = drawn(2, 8, 4, 4)
        x[0, 3, 1, 1] = float("inf")
        y = BatchNorm(8, relu=relu)(x, added=drawn(2, 8, 4, 4) if added else None)
        assert y[:, 3].isnan().all() and y[:, :3].isfinite().all()
    print("equal")


main()
