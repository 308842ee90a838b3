"""The convolutions of the network, as implemented by PyTorch."""

from torch import nn


class Depthwise(nn.Conv2d):
    """A 3 x 3 depthwise convolution without bias; ``stride`` 2 halves rows and columns."""

    def __init__(self, channels: int, *, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(
            channels, channels, 3, stride, padding=dilation, dilation=dilation, groups=channels, bias=False
        )


class Pointwise(nn.Conv2d):
    """A 1 x 1 convolution without bias; ``stride`` 2 takes every other row and column."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1) -> None:
        super().__init__(inputs, outputs, 1, stride, bias=False)


class Separable(nn.Sequential):
    """A depthwise convolution followed by a pointwise one."""

    def __init__(self, inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> None:
        super().__init__(Depthwise(inputs, stride=stride, dilation=dilation), Pointwise(inputs, outputs))
        self.stride, self.dilation = stride, dilation


class Conv3x3(nn.Conv2d):
    """A 3 x 3 convolution over all channels, without bias, with "same" padding."""

    def __init__(self, inputs: int, outputs: int, *, dilation: int = 1) -> None:
        super().__init__(inputs, outputs, 3, padding=dilation, dilation=dilation, bias=False)


class Deconvolution(nn.ConvTranspose2d):
    """A 3 x 3 deconvolution to twice the rows and columns, without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, stride=2, padding=1, output_padding=1, bias=False)
