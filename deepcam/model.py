"""The DeepCAM network: DeepLabv3+ (Chen et al. 2018) with a modified Xception encoder and a deconvolutional
decoder (Kurth et al. 2018), in the version of the MLPerf HPC reference, rounds 0.7 to 3.0."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mlhpc.benchmarks.deepcam import Network
from mlhpc.common.pytorch.batchnorm import BatchNorm
from mlhpc.common.pytorch.foreach import on_cpu
from mlhpc.deepcam.layers.convolution import Conv3x3, Deconvolution, Pointwise, Separable

DILATIONS = (6, 12, 18)  # of the ASPP at output stride 16 (Chen et al. 2018, section 3.1)


def build_model(network: Network, channels: int) -> "DeepLab":
    """A model that maps fields ``[b, channels, H, W]`` to logits ``[b, classes, H, W]``, for H and W that are
    divisible by 16 and at least 32.

    With ``width`` 1 and 16 middle blocks it is the reference's network, with 56,454,720 parameters for 16 channels
    and 3 classes. With a smaller ``width``, every layer has only this fraction of its filters, rounded to a
    multiple of 8. The initial weights are drawn from torch's random state.
    """
    return DeepLab(network, channels)


class DeepLab(nn.Module):
    """The encoder, at strides 2, 4 (from which low-level features go to the decoder), 8 and 16; the ASPP; and the
    decoder, back to stride 1."""

    def __init__(self, network: Network, channels: int) -> None:
        super().__init__()

        def filters(count: int) -> int:
            return max(8, round(count * network.width / 8) * 8)

        def block(inputs: int, *widths: int, **options: Any) -> Block:
            return Block(filters(inputs), [filters(width) for width in widths], **options)

        self.stem = nn.Sequential(
            nn.Conv2d(channels, filters(32), 3, stride=2, padding=1, bias=False),
            BatchNorm(filters(32), relu=True),
            nn.Conv2d(filters(32), filters(64), 3, padding=1, bias=False),
            BatchNorm(filters(64), relu=True),
        )
        # The reference applies ReLU in place to the output of block 1 after passing it to the decoder, which
        # therefore sees it rectified. This is why this block has a ReLU, which the paper's figure does not show.
        self.entry_block1 = block(64, 128, 128, stride=2)
        self.encoder = nn.Sequential(
            block(128, 256, 256, stride=2),
            block(256, 728, 728, stride=2),
            *(block(728, 728, 728, 728) for _ in range(network.middle_blocks)),
            block(728, 728, 1024, closing=True, relu=False),
            *(
                nn.Sequential(Separable(filters(a), filters(b), dilation=2), BatchNorm(filters(b), relu=True))
                for a, b in ((1024, 1536), (1536, 1536), (1536, 2048))
            ),
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        self.aspp = ASPP(filters(2048), filters(256))
        self.decoder = Decoder(filters(256), filters(128), filters(48), network.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps fields [b, channels, h, w] to logits [b, classes, h, w]."""
        low_level = self.entry_block1(self.stem(x))
        logits: Tensor = self.decoder(self.aspp(self.encoder(low_level)), low_level)
        return logits


OLD_NAMES = {
    "fine.": "entry_block1.",
    "coarse.": "encoder.",
    "pyramid.": "aspp.",
    "decoder.rise.": "decoder.upsample.",
    "decoder.blend.": "decoder.fuse.",
    "decoder.finish.": "decoder.head.",
}
"""Prefixes of weight names in checkpoints of version 0.1, with their current names."""


def current_name(name: str) -> str:
    """The current name of the weight that is called ``name`` in a checkpoint of any version."""
    for old, new in OLD_NAMES.items():
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name


class Block(nn.Module):
    """Separable convolutions with these ``widths``, each followed by batch norm, with a ReLU between them. If
    ``closing`` or strided, they end with a separable convolution without batch norm, which has the ``stride``. The
    shortcut is added, after a 1 x 1 convolution and batch norm if the shape changes; if ``relu``, a ReLU is
    applied to the sum."""

    def __init__(
        self, inputs: int, widths: Sequence[int], *, stride: int = 1, closing: bool = False, relu: bool = True
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        last = inputs
        for number, width in enumerate(widths, 1):
            layers += [Separable(last, width), BatchNorm(width, relu=number < len(widths))]
            last = width
        if closing or stride > 1:
            layers.append(Separable(last, last, stride=stride))
        self.layers = nn.Sequential(*layers)
        self.shortcut = nn.Sequential()
        if stride > 1 or last != inputs:
            self.shortcut.extend([Pointwise(inputs, last, stride=stride), BatchNorm(last)])
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` [b, inputs, h, w] to [b, widths[-1], h / stride, w / stride]."""
        branch, other = self.shortcut, self.layers
        if isinstance(self.layers[-1], BatchNorm):
            branch, other = self.layers, self.shortcut
        if len(branch) and not on_cpu(x):  # the sum and the ReLU are part of the batch norm
            y: Tensor = other(x)
            *before, norm = branch
            for module in before:
                x = module(x)
            z: Tensor = norm(x, added=y, relu=self.relu)
            return z
        y = self.layers(x)
        y += self.shortcut(x)
        return y.relu_() if self.relu else y


class Affine(nn.Module):
    """A learned factor and offset for every channel, in place of batch norm, which cannot average over the only
    remaining pixel."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features, 1, 1))
        self.bias = nn.Parameter(torch.zeros(features, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Scales and shifts ``x`` [b, features, h, w]; the result has the same shape."""
        return self.weight * x + self.bias


class ASPP(nn.Module):
    """Atrous spatial pyramid pooling: a 1 x 1 convolution, three dilated convolutions and the global mean, in
    parallel, joined by a 1 x 1 convolution."""

    def __init__(self, inputs: int, filters: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(
            nn.Sequential(convolution, BatchNorm(filters, relu=True))
            for convolution in (
                nn.Conv2d(inputs, filters, 1, bias=False),
                *(Conv3x3(inputs, filters, dilation=dilation) for dilation in DILATIONS),
            )
        )
        for level in self.levels:
            nn.init.kaiming_normal_(level[0].weight)  # type: ignore[index]
        self.mean = nn.Sequential(nn.Conv2d(inputs, filters, 1, bias=False), Affine(filters), nn.ReLU())
        self.join = nn.Sequential(
            nn.Conv2d(5 * filters, filters, 1, bias=False), BatchNorm(filters, relu=True)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``x`` [b, inputs, h, w] to [b, filters, h, w]."""
        levels = [level(x) for level in self.levels]
        # With the mean in channels-last layout, gradients have the same layout as in the other branches.
        mean = x.permute(0, 2, 3, 1).mean((1, 2), keepdim=True).permute(0, 3, 1, 2)
        levels.append(self.mean(mean).expand_as(levels[0]))
        y: Tensor = self.join(torch.cat(levels, 1))
        return y


class Decoder(nn.Module):
    """Upsamples from stride 16 to 4, adds the encoder's features of that stride as channels, and upsamples to
    stride 1."""

    def __init__(self, filters: int, low_level: int, reduced: int, classes: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(
            nn.Conv2d(low_level, reduced, 1, bias=False), BatchNorm(reduced, relu=True)
        )
        self.upsample = nn.Sequential(*upsample_block(filters), *upsample_block(filters))
        self.fuse = nn.Sequential(
            Conv3x3(filters + reduced, filters),
            BatchNorm(filters, relu=True),
            Conv3x3(filters, filters),
            BatchNorm(filters, relu=True),
            nn.Conv2d(filters, filters, 1),
        )
        self.head = nn.Sequential(*upsample_block(filters), Deconvolution(filters, classes))

    def forward(self, x: Tensor, low_level: Tensor) -> Tensor:
        """Maps ``x`` [b, filters, h / 16, w / 16] and ``low_level`` [b, features, h / 4, w / 4] to
        [b, classes, h, w]."""
        y: Tensor = self.head(self.fuse(torch.cat((self.upsample(x), self.reduce(low_level)), 1)))
        return y


def upsample_block(filters: int) -> tuple[nn.Module, nn.Module]:
    """The two layers of a block that doubles rows and columns."""
    return Deconvolution(filters, filters), BatchNorm(filters, relu=True)
