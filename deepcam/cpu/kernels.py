"""The same network with kernels of our own, where it is trained on a CPU."""

from torch import nn

from mlhpc.deepcam.cpu import convolution
from mlhpc.deepcam.cpu.recompute import RecomputeSequential
from mlhpc.deepcam.layers import convolution as plain
from mlhpc.deepcam.layers.batchnorm import BatchNorm

KERNELS: dict[type[nn.Module], type[nn.Module]] = {
    plain.Depthwise: convolution.CpuDepthwise,
    plain.Pointwise: convolution.CpuPointwise,
    plain.Separable: convolution.CpuSeparable,
    plain.Conv3x3: convolution.CpuConv3x3,
    plain.Deconvolution: convolution.CpuDeconvolution,
    nn.Sequential: RecomputeSequential,
}


def use_cpu_kernels(model: nn.Module) -> None:
    """Let every layer of ``model`` that we have a faster or leaner kernel for compute with it. Weights, names and
    results stay what they are, the results up to rounding."""
    for module in model.modules():
        if kernel := KERNELS.get(type(module)):
            module.__class__ = kernel  # it differs in ``forward`` only
        elif isinstance(module, BatchNorm):
            module.recompute = True
