"""Replaces layers of the network by faster CPU kernels."""

from torch import nn

from mlhpc.common.pytorch.batchnorm import BatchNorm
from mlhpc.deepcam.cpu import convolution
from mlhpc.deepcam.cpu.recompute import RecomputeSequential
from mlhpc.deepcam.layers import convolution as plain

KERNELS: dict[type[nn.Module], type[nn.Module]] = {
    plain.Depthwise: convolution.CpuDepthwise,
    plain.Pointwise: convolution.CpuPointwise,
    plain.Separable: convolution.CpuSeparable,
    plain.Conv3x3: convolution.CpuConv3x3,
    plain.Deconvolution: convolution.CpuDeconvolution,
    nn.Sequential: RecomputeSequential,
}


def use_cpu_kernels(model: nn.Module) -> None:
    """Make every layer of ``model`` use a CPU kernel that is faster or needs less memory, if there is one.
    Weights, names and, up to rounding, results do not change."""
    for module in model.modules():
        if kernel := KERNELS.get(type(module)):
            module.__class__ = kernel  # only ``forward`` differs
        elif isinstance(module, BatchNorm):
            module.recompute = True
