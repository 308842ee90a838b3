"""Foreign images: the size in the header is compared with what the bytes can encode."""

import io

import numpy as np
import pytest
from helpers.limits import limited
from PIL import Image

from mlhpc.resnet50.data.image import BrokenImage, decode, size_of


def jpeg(height, width, **options):
    return encoded(height, width, "jpeg", **options)


def encoded(height, width, kind, **options):
    file = io.BytesIO()
    more = {"append_images": [Image.new("RGBA", (width, height), "red")]} if "save_all" in options else {}
    Image.new("RGB", (width, height)).save(file, kind, **options, **more)
    return bytearray(file.getvalue())


def array(data):
    return np.frombuffer(bytes(data), np.uint8)


def test_a_jpeg_that_claims_more_pixels_than_its_bytes_can_encode_is_refused():
    """Otherwise memory for all of them would be allocated before the decoder notices."""
    data = jpeg(16, 16)
    at = next(i for i in range(len(data)) if data[i] == 0xFF and data[i + 1] == 0xC0)
    data[at + 5 : at + 9] = (20000).to_bytes(2) + (20000).to_bytes(2)
    assert size_of(array(data)) == (20000, 20000)
    with pytest.raises(BrokenImage, match=f"{len(data)} bytes cannot encode the 20000 x 20000 pixels"):
        decode(array(data))


@pytest.mark.parametrize("kind", ["png", "gif", "bmp", "webp"])
def test_few_other_formats_are_read_under_any_name(kind):
    file = io.BytesIO()
    Image.new("RGB", (5, 3)).save(file, kind)
    assert decode(array(file.getvalue())).shape == (3, 3, 5)


@pytest.mark.parametrize("kind", ["eps", "ppm", "tiff", "pcx"])
def test_no_other_format_that_pillow_knows_is_opened(kind):
    """An image in PostScript is a program, which Pillow has Ghostscript run."""
    file = io.BytesIO()
    Image.new("RGB", (5, 3)).save(file, kind)
    with pytest.raises(BrokenImage, match="unknown format"):
        decode(array(file.getvalue()))


@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}, {"quality": 1}])
def test_the_most_compressible_image_is_not_refused(options):
    """One colour all over, which is what compresses best."""
    data = array(jpeg(3000, 4000, **options))
    assert decode(data).shape == (3, 3000, 4000)


@pytest.mark.parametrize(
    ("side", "kind", "options"),
    [
        (8192, "jpeg", {"quality": 1}),
        (4896, "jpeg", {"progressive": True, "subsampling": 0}),
        (3391, "png", {}),
        (3391, "webp", {}),
        (3391, "webp", {"lossless": True}),
        (3391, "bmp", {}),
        (3391, "webp", {"save_all": True}),
    ],
)
def test_the_largest_image_takes_at_most_256_mib(side, kind, options):
    data = array(encoded(side, side, kind, **options))
    with limited(len(data), seconds=60):
        assert decode(data).shape == (3, side, side)
    with pytest.raises(BrokenImage, match="too large"):
        decode(array(encoded(side + 16, side, kind, **options)))


def test_a_jpeg_in_several_scans_is_held_to_the_lower_limit():
    """The decoder holds the coefficients of all of them until the last one."""
    data = jpeg(5000, 5000)
    at = data.index(b"\xff\xda")
    assert decode(array(data)).shape == (3, 5000, 5000) and data[at + 4] == 3
    data[at + 4] = 1
    with pytest.raises(BrokenImage, match="too large"):
        decode(array(data))


@pytest.mark.parametrize(
    "extra", [b"\0", b"\xff\0", b"\xff\x01", b"\xff\xd0", b"\xff\xfe\0\0"], ids=bytes.hex
)
def test_bytes_that_the_decoder_skips_do_not_hide_the_size_from_the_guard(extra):
    data = jpeg(96, 120, quality=1)
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = (4000).to_bytes(2) * 2
    tables = data.index(b"\xff\xdb")
    for start in (2, tables):
        with pytest.raises(BrokenImage):
            decode(array(data[:start] + extra + data[start:]))


def test_a_16_bit_greyscale_image_keeps_its_high_byte():
    values = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "png")
    assert (decode(array(file.getvalue())).numpy() == np.arange(256).reshape(16, 16)).all()
