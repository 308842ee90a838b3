"""Crops and resizes an image: to a random view in training, to the central one in evaluation.

This is torchvision's standard preprocessing; closed runs use the MLPerf reference's (``mlperf.py``).

Random resized crop (Szegedy et al. 2015, arXiv:1409.4842, section 6): 8% to 100% of the area, with an aspect ratio
from 3/4 to 4/3. Evaluation: the shorter side is resized to 256, then the central 224 x 224 pixels are used (He et
al. 2016, arXiv:1512.03385, section 3.4, only the centre crop of "10-crop"); other sizes are in proportion.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torchvision.transforms.v2 import functional

# Mean and standard deviation of RGB in [0, 1] over the ImageNet training set, as in torchvision's networks.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
AREA = (0.08, 1.0)
RATIO = (3 / 4, 4 / 3)
_TRIES = 10
# For bytes: x = byte · _SCALE - _SHIFT
_SCALE = tuple(np.float32(1 / (255 * std)) for std in STD)
_SHIFT = tuple(np.float32(mean / std) for mean, std in zip(MEAN, STD, strict=True))


class View(NamedTuple):
    """The box of an image that is resized to ``rows x columns``, the position of the crop in the resized box, and
    whether the crop is mirrored."""

    top: int
    left: int
    height: int
    width: int
    rows: int
    columns: int
    down: int = 0
    right: int = 0
    mirrored: bool = False


def training_view(height: int, width: int, size: int, rng: np.random.Generator) -> View:
    """A random box that is resized to ``size x size``, and mirrored with probability 1/2. If none of ten boxes
    drawn fits into the image, the box is the largest central one with an allowed ratio, as in torchvision's
    RandomResizedCrop."""
    mirrored = bool(rng.random() < 0.5)
    for _ in range(_TRIES):
        area = height * width * rng.uniform(*AREA)
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = int(rng.integers(height - h + 1)), int(rng.integers(width - w + 1))
            return View(top, left, h, w, size, size, mirrored=mirrored)
    h, w = min(height, round(width / RATIO[0])), min(width, round(height * RATIO[1]))
    return View((height - h) // 2, (width - w) // 2, h, w, size, size, mirrored=mirrored)


def evaluation_view(height: int, width: int, size: int) -> View:
    """The centre of the whole image after its shorter side has been resized to 256/224 of ``size``."""
    short = round(size * 256 / 224)
    if height <= width:
        rows, columns = short, int(short * width / height)
    else:
        rows, columns = int(short * height / width), short
    return View(0, 0, height, width, rows, columns, round((rows - size) / 2), round((columns - size) / 2))


def crop_resize(pixels: torch.Tensor, view: View, size: int) -> torch.Tensor:
    """Crop an image, uint8 ``[3, height, width]``, and resize it to the ``view``, uint8 ``[3, size, size]``, not
    yet mirrored. Interpolation is bilinear with antialiasing, as in Pillow.
    """
    box = functional.resized_crop(
        pixels, view.top, view.left, view.height, view.width, [view.rows, view.columns], antialias=True
    )
    crop: torch.Tensor = box[:, view.down : view.down + size, view.right : view.right + size]
    return crop


def render(pixels: torch.Tensor, view: View, size: int, x: npt.NDArray[np.float32]) -> None:
    """Write the ``view`` of an image, uint8 ``[3, height, width]``, normalised, into ``x``, float32 ``[size, size,
    3]``."""
    normalise(crop_resize(pixels, view, size).numpy(), view.mirrored, x)


def normalise(pixels: npt.NDArray[np.uint8], mirrored: bool, x: npt.NDArray[np.float32]) -> None:
    """Write (byte / 255 - mean) / standard deviation of ``pixels``, uint8 ``[3, size, size]``, into ``x``, float32
    ``[size, size, 3]``, mirrored if ``mirrored``."""
    for channel in range(3):
        plane = pixels[channel, :, ::-1] if mirrored else pixels[channel]
        values = plane * _SCALE[channel]
        np.subtract(values, _SHIFT[channel], out=x[:, :, channel])
