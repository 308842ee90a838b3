"""Reads an image from storage into a row of a batch: decodes, crops, mirrors and normalises it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from mlhpc.common.data.loader import Parts
from mlhpc.errors import UserError
from mlhpc.resnet50.data import augment, mlperf
from mlhpc.resnet50.data.augment import View
from mlhpc.resnet50.data.formats import Bytes, Images
from mlhpc.resnet50.data.image import BrokenImage, decode, size_of

LEFT_OUT = -1


class Preprocessing(NamedTuple):
    """The functions that turn an image into the network's input; arguments as in ``augment`` and ``mlperf``."""

    training_view: Callable[[int, int, int, np.random.Generator], View]
    evaluation_view: Callable[[int, int, int], View]
    render: Callable[[torch.Tensor, View, int, npt.NDArray[np.float32]], None]


PREPROCESSING = {
    "mlperf": Preprocessing(mlperf.training_view, mlperf.evaluation_view, mlperf.render),
    "torchvision": Preprocessing(augment.training_view, augment.evaluation_view, augment.render),
}


class Sample(NamedTuple):
    """The result of reading one image: its label, or LEFT_OUT; the bytes read; and the images skipped, with the
    reasons."""

    label: int
    size: int
    broken: tuple[str, ...] = ()


Batch = tuple[torch.Tensor, torch.Tensor, int, tuple[str, ...]]
"""``x`` [b, size, size, 3] and ``y`` [b], with axes in memory order; the bytes read; the images skipped, with the
reasons."""


@dataclass(frozen=True)
class Reader:
    """Reads the images of one epoch as the network's input, ``size x size``. Thread-safe.

    ``draw``: (seed, pool, epoch), or None for the views of an evaluation. The view of image i depends only on
    ``draw`` and i, so it is the same for any number of ranks and workers. If ``broken`` is "skip", an image that
    cannot be decoded is skipped: training uses the next image instead, evaluation uses none. ``pinned``: labels
    are in page-locked memory.
    """

    images: Images
    size: int
    draw: tuple[int, int, int] | None
    broken: Literal["stop", "skip"] = "stop"
    preprocessing: Literal["mlperf", "torchvision"] = "torchvision"
    pinned: bool = False

    @property
    def parts(self) -> Parts:
        """A sample has one part, an image in float32 of shape (size, size, 3)."""
        return (((self.size, self.size, 3), "float32"),)

    def finish(self, arrays: Sequence[torch.Tensor], results: Sequence[Sample]) -> Batch:
        """The batch with the images in ``arrays``, one array [b, size, size, 3]."""
        y = torch.tensor([sample.label for sample in results], dtype=torch.int64, pin_memory=self.pinned)
        broken = tuple(message for sample in results for message in sample.broken)
        return arrays[0], y, sum(sample.size for sample in results), broken

    def view(self, index: int, data: Bytes) -> View:
        """The view of image ``index``. Raises BrokenImage if the image's size cannot be determined."""
        return self._view(index, *size_of(data))

    def read(self, index: int, x: npt.NDArray[np.float32]) -> Sample:
        """Read image ``index`` into ``x`` float32 ``[size, size, 3]``.

        Raises UserError naming the image if it cannot be read, and BrokenImage if it cannot be decoded and must
        not be skipped, or if no other image can be decoded in its place.
        """
        broken: list[str] = []
        total = 0
        while True:
            data, label = self.images.read(index)
            total += data.nbytes
            try:
                pixels = decode(data)
                view = self._view(index, pixels.shape[1], pixels.shape[2])
                PREPROCESSING[self.preprocessing].render(pixels, view, self.size, x)
                return Sample(label, total, tuple(broken))
            except BrokenImage as error:
                if self.broken == "stop":
                    raise self.named(index, error) from error
                broken.append(f"{self.images.name(index)}: {error}")
                if self.draw is None:
                    return Sample(LEFT_OUT, total, tuple(broken))
                if len(broken) == len(self.images):
                    raise UserError(f"{broken[0]}; no readable images are left") from error
                index = (index + 1) % len(self.images)

    def named(self, index: int, error: Exception) -> BrokenImage:
        """Return ``error`` as a BrokenImage with the image's name and what to do."""
        return BrokenImage(
            f"{self.images.name(index)}: {error}; fix it, or set loading.broken_images=skip to continue without it"
        )

    def _view(self, index: int, height: int, width: int) -> View:
        preprocessing = PREPROCESSING[self.preprocessing]
        if self.draw is None:
            return preprocessing.evaluation_view(height, width, self.size)
        rng = np.random.default_rng([*self.draw, index])
        return preprocessing.training_view(height, width, self.size, rng)
