"""The 3-D U-Net (Çiçek et al. 2016, arXiv 1606.06650), of whole volumes or of slabs."""

import torch
from torch import Tensor, nn

from mlhpc.common.pytorch.batchnorm import BatchNorm
from mlhpc.common.pytorch.spatial import SpatialGroup, with_halo


class UNet(nn.Module):
    """Intensities ``[b, d, h, w]`` to logits ``[b, classes, d, h, w]``, float32.

    With ``group`` both are this rank's slab. Only convolutions exchange planes with neighbours: slabs have even
    sides on all levels, so pooling by two and the transposed convolutions that reverse it stay inside.
    """

    def __init__(self, filters: int, levels: int, classes: int, group: SpatialGroup | None = None):
        super().__init__()
        widths = [filters << level for level in range(levels)]
        self.down = nn.ModuleList([Block(1, filters, group), *(Block(w, 2 * w, group) for w in widths)])
        self.up = nn.ModuleList(nn.ConvTranspose3d(2 * w, w, 2, stride=2) for w in widths)
        self.merge = nn.ModuleList(Block(2 * w, w, group) for w in widths)
        self.last = nn.Conv3d(filters, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, skipped = self.down[0](x.unsqueeze(1)), []
        for block in self.down[1:]:
            skipped.append(x)
            x = block(nn.functional.max_pool3d(x, 2))
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(torch.cat([skipped.pop(), up(x)], dim=1))
        return self.last(x)


class Block(nn.Module):
    """Twice a convolution of 3³ taps, batch norm, ReLU: ``[b, inputs, d, h, w]`` to ``[b, outputs, d, h, w]``."""

    def __init__(self, inputs: int, outputs: int, group: SpatialGroup | None):
        super().__init__()
        self.group, taps = group, {"kernel_size": 3, "padding": 0 if group else 1, "bias": False}
        self.convolutions = nn.ModuleList(nn.Conv3d(i, outputs, **taps) for i in (inputs, outputs))
        # Momentum: Adam changes weights so much per step that statistics of the last ten steps are obsolete.
        self.norms = nn.ModuleList(BatchNorm(outputs, relu=True, momentum=0.5) for _ in self.convolutions)

    def forward(self, x: Tensor) -> Tensor:
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(with_halo(x, 3, self.group) if self.group else x))
        return x
