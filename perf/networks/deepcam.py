"""DeepCAM's DeepLabv3+ (Chen et al. 2018; Kurth et al. 2018; the MLPerf HPC reference) as a list of layers."""

from collections.abc import Sequence

from mlhpc.benchmarks import deepcam
from mlhpc.perf.networks.builder import Builder, Tensor, Window
from mlhpc.perf.networks.layer import Network

DILATIONS = (6, 12, 18)


def layers(network: deepcam.Network, sample_shape: Sequence[int], *, fused: bool = False) -> Network:
    """The layers for samples [rows, columns, channels], with sides divisible by 16. ``fused``: as computed by the
    suite's GPU kernels."""
    net = Builder("DeepCAM", sample_shape, fused=fused)
    net_filters = _Filters(network.width)
    xception = _Xception(net, net_filters)

    x = net.convolution("stem conv 1", net.input, net_filters(32), Window(3, stride=2, padding=1))
    x = net.batch_norm("stem norm 1", x, relu=True)
    x = net.convolution("stem conv 2", x, net_filters(64), 3)
    x = net.batch_norm("stem norm 2", x, relu=True)

    low_level = xception.block("entry 1", x, (128, 128), stride=2)
    x = xception.block("entry 2", low_level, (256, 256), stride=2)
    x = xception.block("entry 3", x, (728, 728), stride=2)
    for number in range(1, network.middle_blocks + 1):
        x = xception.block(f"middle {number}", x, (728, 728, 728))
    x = xception.block("exit", x, (728, 1024), closing=True, relu=False)
    for number, width in enumerate((1536, 1536, 2048), 1):
        x = xception.separable(f"exit {number}", x, net_filters(width), dilation=2)
        x = net.batch_norm(f"exit {number} norm", x, relu=True)

    x = _aspp(net, x, net_filters(256))
    x = _decoder(net, x, low_level, net_filters, network.classes)
    net.cross_entropy(x, labels=x.elements // network.classes)
    return net.network()


class _Filters:
    def __init__(self, width: float) -> None:
        self.width = width

    def __call__(self, count: int) -> int:
        return max(8, round(count * self.width / 8) * 8)


class _Xception:
    """The encoder's separable convolutions and residual blocks."""

    def __init__(self, net: Builder, filters: _Filters) -> None:
        self.net, self.filters = net, filters

    def separable(self, name: str, x: Tensor, outputs: int, *, stride: int = 1, dilation: int = 1) -> Tensor:
        x = self.net.depthwise(f"{name} depthwise", x, Window(3, stride, dilation, dilation))
        return self.net.convolution(f"{name} pointwise", x, outputs, 1)

    def block(
        self,
        name: str,
        x: Tensor,
        widths: Sequence[int],
        *,
        stride: int = 1,
        closing: bool = False,
        relu: bool = True,
    ) -> Tensor:
        y = x
        for number, width in enumerate(widths, 1):
            y = self.separable(f"{name}.{number}", y, self.filters(width))
            y = self.net.batch_norm(f"{name}.{number} norm", y, relu=number < len(widths))
        if closing or stride > 1:
            y = self.separable(f"{name}.{len(widths) + 1}", y, y.channels, stride=stride)
        shortcut = x
        if stride > 1 or y.channels != x.channels:
            shortcut = self.net.convolution(f"{name} shortcut", x, y.channels, Window(1, stride=stride))
            shortcut = self.net.batch_norm(f"{name} shortcut norm", shortcut)
        y = self.net.add(f"{name} sum", y, shortcut)
        return self.net.relu(f"{name} ReLU", y) if relu else y


def _aspp(net: Builder, x: Tensor, filters: int) -> Tensor:
    """Atrous spatial pyramid pooling: a pointwise convolution, three dilated ones and the mean, in parallel."""
    levels = [net.convolution("ASPP 1x1", x, filters, 1)]
    levels[0] = net.batch_norm("ASPP 1x1 norm", levels[0], relu=True)
    for dilation in DILATIONS:
        level = net.convolution(f"ASPP {dilation}", x, filters, Window(3, dilation=dilation))
        levels.append(net.batch_norm(f"ASPP {dilation} norm", level, relu=True))
    mean = net.mean_pool("ASPP mean", x, (1, 1))
    mean = net.convolution("ASPP mean 1x1", mean, filters, 1)
    mean = net.relu("ASPP mean ReLU", net.affine("ASPP mean affine", mean))
    levels.append(net.expand(mean, levels[0].shape))
    x = net.concatenate("ASPP concatenation", *levels)
    return net.batch_norm("ASPP join norm", net.convolution("ASPP join", x, filters, 1), relu=True)


def _decoder(net: Builder, x: Tensor, low_level: Tensor, filters: _Filters, classes: int) -> Tensor:
    """Upsamples from stride 16 to 4, concatenates the low-level features there, and continues to stride 1."""
    width = filters(256)

    def upsample(name: str, x: Tensor) -> Tensor:
        return net.batch_norm(f"{name} norm", net.transposed(name, x, width, 3, stride=2), relu=True)

    x = upsample("upsample 2", upsample("upsample 1", x))
    low = net.convolution("low-level 1x1", low_level, filters(48), 1)
    low = net.batch_norm("low-level norm", low, relu=True)
    x = net.concatenate("decoder concatenation", x, low)
    for number in (1, 2):
        x = net.convolution(f"fuse {number}", x, width, 3)
        x = net.batch_norm(f"fuse {number} norm", x, relu=True)
    x = net.convolution("fuse 3", x, width, 1, bias=True)
    x = upsample("upsample 3", x)
    return net.transposed("upsample 4", x, classes, 3, stride=2)
