"""Decodes JPEG images, and reads the size of an image without decoding."""

import io
import re
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torchvision.io import ImageReadMode, decode_jpeg

from mlhpc.errors import UserError
from mlhpc.resnet50.data.formats import Bytes

_JPEG = b"\xff\xd8"
# Frame headers (ITU-T T.81, table B.1): SOF0 to SOF15 except DHT, JPG and DAC.
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SEQUENTIAL, _SCAN = frozenset({0xC0, 0xC1}), 0xDA
_BARE = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
"""Markers that have no segment. No header needs them, and the decoder skips some of them."""

FORMATS = ("PNG", "GIF", "BMP", "WEBP")
"""Formats read besides JPEG, under any file name. Pillow supports many more, but passes EPS to Ghostscript."""
MAX_PIXELS = 1 << 26
"""Limit against decompression bombs, such that decoding takes at most 256 MiB: a JPEG of one scan is decoded by
lines into 3 bytes per pixel."""
MAX_PIXELS_IN_SCANS = 24_000_000
"""The same for JPEGs of several scans, whose decoder holds all coefficients: 11 bytes per pixel."""
MAX_PIXELS_IN_PILLOW = 11_500_000
"""The same for the other formats: up to 22 bytes per pixel (animated WebP)."""


class BrokenImage(UserError):
    """Raised if an image cannot be decoded; ``loading.broken_images`` determines whether it is skipped instead."""


def decode(data: Bytes) -> torch.Tensor:
    """RGB pixels, uint8 ``[3, height, width]``, decoded from the content of a JPEG file or one in another of the
    ``FORMATS``; if ``data`` already consists of pixels, a view of it. Greyscale and CMYK are converted to RGB. The
    EXIF orientation is ignored, as in ImageNet training.

    Raises BrokenImage, without the file's name, if the image cannot be decoded or is truncated.
    """
    if data.ndim == 3:
        return torch.from_numpy(data).permute(2, 0, 1)
    try:
        if data[:2].tobytes() == _JPEG:
            _require_plausible(data)
            pixels: torch.Tensor = decode_jpeg(torch.from_numpy(data), ImageReadMode.RGB)
            return pixels
        with Image.open(io.BytesIO(data.data), formats=FORMATS) as opened:
            image: Image.Image = opened
            _require_at_most(MAX_PIXELS_IN_PILLOW, image.height, image.width)
            if image.mode.startswith("I"):  # 16 bits, which Pillow would clip to 8 bits
                image = Image.fromarray((np.array(image) >> 8).astype(np.uint8))
            if image.mode != "RGB":
                image = image.convert("RGB")
            return torch.from_numpy(np.array(image)).permute(2, 0, 1)
    except (RuntimeError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BrokenImage(f"not a readable image ({_reason(error)})") from error


def size_of(data: Bytes) -> tuple[int, int]:
    """Height and width, from the header. Raises BrokenImage like ``decode``."""
    if data.ndim == 3:
        return data.shape[0], data.shape[1]
    if data[:2].tobytes() != _JPEG:
        return int((pixels := decode(data)).shape[1]), int(pixels.shape[2])
    if frame := _frame(data):
        return frame[:2]
    raise BrokenImage("not a readable image (a JPEG without a frame header)")


def _require_plausible(data: Bytes) -> None:
    """Raise BrokenImage, before memory is allocated, for a JPEG whose header claims more pixels than its bytes can
    encode, or which contains stray bytes, after which the decoder might find a different size. A block of 64
    pixels takes at least one bit (ITU-T T.81, annex F.1.2), so a byte encodes at most 512 pixels."""
    frame = _frame(data)
    height, width = frame[:2] if frame else size_of(data)
    if height * width > 4096 + 1024 * len(data):
        raise BrokenImage(
            f"not a readable image ({len(data)} bytes cannot encode the {height} x {width} pixels of its header)"
        )
    _require_at_most(MAX_PIXELS if frame and frame[2] else MAX_PIXELS_IN_SCANS, height, width)


def _require_at_most(limit: int, height: int, width: int) -> None:
    if height * width > limit:
        raise BrokenImage(f"not a readable image (too large: {height} x {width} pixels, limit {limit:,})")


def _frame(data: Bytes) -> tuple[int, int, bool] | None:
    """Height and width in the frame header of a JPEG, and whether one sequential scan contains all its components;
    None without a frame header, or with stray bytes before it."""
    head = data.data
    frame, components = None, 0
    try:
        for marker, at in _segments(head):
            if marker in _FRAMES and not frame:
                height, width = (head[i] << 8 | head[i + 1] for i in (at + 3, at + 5))
                if not height or not width:
                    break
                frame, components = (height, width, False), head[at + 7] if marker in _SEQUENTIAL else 0
            elif marker == _SCAN:
                return frame and (*frame[:2], head[at + 2] == components)
    except IndexError:
        pass
    return frame


def _segments(head: memoryview) -> Iterator[tuple[int, int]]:
    """The marker of each segment of a JPEG, and the offset of its length, up to stray bytes. Raises IndexError at
    the end of the data."""
    at = 2
    while head[at] == 0xFF:
        marker = head[at + 1]
        if marker == 0xFF:  # fill bytes may precede a marker
            at += 1
            continue
        length = head[at + 2] << 8 | head[at + 3]
        if marker in _BARE or (length < 2 and marker not in _FRAMES):
            return
        yield marker, at + 2
        at += 2 + max(length, 2)


def _reason(error: Exception) -> str:
    """The error message of torchvision or Pillow, without memory addresses and source lines."""
    if isinstance(error, UnidentifiedImageError):
        return "unknown format"
    return re.sub(r"^\w+, \S+:\d+, ", "", " ".join(str(error).split())) or type(error).__name__
