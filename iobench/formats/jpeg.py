"""JPEG: one image per file, decoded when it is read.

A noisy image as large as fits into the sample's bytes is encoded once per process; an application segment (APP15)
of random bytes fills the rest, so that all files have exactly the requested size and differ from each other. In
DLIO's layout the sample's bytes are the pixels of a grey image, and the size of the file follows from them.
"""

import io
import math
import struct
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from mlhpc.common.files.atomic import write_all
from mlhpc.errors import UserError
from mlhpc.iobench.definition.schema import Dataset
from mlhpc.iobench.formats import formats
from mlhpc.iobench.formats.access import buffered
from mlhpc.iobench.formats.formats import Bytes, MakeSample, Sizes, rows_and_columns

QUALITY = 75
SEGMENT = 65535  # maximum value of a segment's length field (ITU-T T.81, B.2.4.6)
SMALLEST = 1024


def write(fd: int, sizes: Sizes, make_sample: MakeSample, dataset: Dataset) -> None:
    """Write the file's one image. Raises UserError if the requested size is too small for an image."""
    (size,) = sizes.tolist()
    if dataset.layout == "dlio":
        out = io.BytesIO()
        Image.fromarray(make_sample(0, size).reshape(rows_and_columns(size))).save(out, "JPEG")
        return write_all(fd, out.getbuffer())
    write_all(fd, memoryview(picture(make_sample(0, size))))


def picture(content: Bytes) -> bytes:
    """A JPEG file of exactly ``len(content)`` bytes, at least 1024."""
    size = len(content)
    if size < SMALLEST:
        raise UserError(f"dataset.sample_bytes of JPEG files must be at least {SMALLEST}, not {size}")
    side = max(8, int(math.sqrt(size)) // 8 * 8)
    side = max(8, int(side * math.sqrt(size / len(_encoded(side)))) // 8 * 8)
    encoded = _encoded(side)
    while len(encoded) + 4 > size:
        side = max(8, side - 8)
        encoded = _encoded(side)
    parts, left = [encoded[:2]], size - len(encoded)
    while left:
        # A segment has at least 4 bytes (a marker and a length), so no segment may leave fewer than 4 bytes to
        # fill.
        length = min(SEGMENT, left - 2)
        if 0 < left - 2 - length < 4:
            length -= 4
        parts += [b"\xff\xef", struct.pack(">H", length), content[left - length : left - 2].tobytes()]
        left -= 2 + length
    return b"".join([*parts, encoded[2:]])


@cache
def _encoded(side: int) -> bytes:
    random = np.random.Generator(np.random.Philox(key=side))
    coarse = random.integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    noise = random.integers(-24, 25, (side, side, 3))
    pixels = np.clip(coarse.repeat(8, 0).repeat(8, 1) + noise, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


class Samples(formats.Samples):
    """Decodes the image."""

    def read(self, number: int) -> Any:
        """The pixels, uint8 [rows, columns, 3], or [rows, columns] in DLIO's layout. Raises UserError if they
        cannot be decoded."""
        source = buffered(self._file) or io.BytesIO(self._file.read(0, self._file.size).data)
        try:
            with Image.open(source) as image:
                pixels = np.asarray(image)
        except (OSError, SyntaxError) as error:
            raise UserError(f"{self._file.path} is not a JPEG file ({error}); regenerate it") from error
        if self._dataset.layout == "dlio":
            self._sizes = np.array([pixels.size])
        return pixels
