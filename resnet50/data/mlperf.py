"""The MLPerf reference's preprocessing of images (crop, resize, mean subtraction), which closed runs use.

Source: mlcommons/training, image_classification/tensorflow2/imagenet_preprocessing.py, and the TensorFlow 2.4
operators that it calls. Its outputs and its distribution of boxes were recorded in
tests/data/reference/resnet50_preprocessing.json.
"""

import math

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.resnet50.data.augment import View

MEAN = (123.68, 116.78, 103.94)
"""The mean value of each colour, from 0 to 255, which is subtracted; there is no division."""

_AREA = (0.05, 1.0)
_RATIO = (0.75, 1.33)
# The data set has no bounding boxes of objects, so the whole image counts as the object. A box has to cover a
# tenth of it, so the smallest area is effectively 10%, not 5%.
_COVERED = 0.1
_TRIES = 100


def training_view(height: int, width: int, size: int, rng: np.random.Generator) -> View:
    """A random box that is resized to ``size x size``, and mirrored with probability 1/2; the whole image if no
    box fits.

    The aspect ratio is drawn uniformly; then the height is drawn uniformly from the integers that ratio and area
    allow. Lengths, not areas, are therefore uniformly distributed, and small boxes are more frequent than in
    torchvision's RandomResizedCrop. The last row and the last column of positions are never drawn.
    """
    mirrored = bool(rng.random() < 0.5)
    for _ in range(_TRIES):
        ratio = rng.uniform(*_RATIO)
        lowest, highest = (round(math.sqrt(share * height * width / ratio)) for share in _AREA)
        highest = min(highest, height, math.ceil((width + 0.5) / ratio) - 1)
        h = int(rng.integers(lowest, highest + 1)) if lowest < highest else highest
        w = round(h * ratio)
        if not 0 < w <= width or not max(_AREA[0], _COVERED) <= h * w / (height * width) <= _AREA[1]:
            continue
        top, left = (int(rng.integers(room)) if room else 0 for room in (height - h, width - w))
        return View(top, left, h, w, size, size, mirrored=mirrored)
    return View(0, 0, height, width, size, size, mirrored=mirrored)


def evaluation_view(height: int, width: int, size: int) -> View:
    """The centre of the whole image after its shorter side has been resized to 256/224 of ``size``."""
    # In float32, as in the reference, where the shorter side is occasionally one pixel smaller.
    scale = np.float32(round(size * 256 / 224)) / np.float32(min(height, width))
    rows, columns = int(np.float32(height) * scale), int(np.float32(width) * scale)
    return View(0, 0, height, width, rows, columns, (rows - size) // 2, (columns - size) // 2)


def render(pixels: torch.Tensor, view: View, size: int, x: npt.NDArray[np.float32]) -> None:
    """Write the ``view`` of an image, uint8 ``[3, height, width]``, into ``x``, float32 ``[size, size, 3]``, as
    values from 0 to 255 minus ``MEAN``.

    Interpolation is bilinear, without antialiasing and without rounding. Output pixel i is sampled at i · input /
    output, so the first pixels of image and output coincide (TensorFlow 1's resize). Mirroring happens before
    resizing.
    """
    above, below, down = _neighbours(view.down, size, view.height, view.rows)
    before, after, right = _neighbours(view.right, size, view.width, view.columns)
    if view.mirrored:
        before, after = view.width - 1 - before, view.width - 1 - after
    # JPEGs are decoded to rows of interleaved colours, so interpolate along rows first.
    image = pixels.permute(1, 2, 0)
    box = image[view.top : view.top + view.height, view.left : view.left + view.width]
    if view.height <= 2 * size:  # interpolate each row of the box once
        box = box[int(above[0]) : int(below[-1]) + 1]
        above, below = above - above[0], below - above[0]
    else:  # only the rows that are needed
        box = torch.cat((box.index_select(0, above), box.index_select(0, below)))
        above, below = torch.arange(size), torch.arange(size, 2 * size)
    rows = _between(box.index_select(1, before), box.index_select(1, after), right[:, None])
    resized = _between(rows.index_select(0, above), rows.index_select(0, below), down[:, None, None])
    torch.sub(resized, torch.tensor(MEAN), out=torch.from_numpy(x))


def _neighbours(
    first: int, count: int, inputs: int, outputs: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each of ``count`` output pixels from ``first`` on: the input pixel at or before it, the input pixel
    after that, and the position between the two, in [0, 1). All are [count]."""
    scale = np.float32(inputs) / np.float32(outputs)
    place = np.arange(first, first + count, dtype=np.float32) * scale
    lower = np.floor(place)
    before = torch.from_numpy(lower.astype(np.int64)).clamp(max=inputs - 1)
    return before, (before + 1).clamp(max=inputs - 1), torch.from_numpy(place - lower)


def _between(first: torch.Tensor, second: torch.Tensor, fraction: torch.Tensor) -> torch.Tensor:
    """first + (second - first) · fraction, with float32 operations in this order; shapes broadcast."""
    first = first.float()
    return second.float().sub_(first).mul_(fraction).add_(first)
